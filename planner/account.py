"""From a configuration to combined terms and work of one rank: the plain path, then every enabled optimization.

Called by planner/plan.py (with texts, once) and planner/search.py (for each candidate).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.checks import refuse_impossible_counts
from planner.combine import Combined, combine
from planner.errors import ConfigError
from planner.optimization import Optimization, PlanContext, RankShape, Registry, instantiate
from planner.parallel import padded_length
from planner.parts import cpu
from planner.parts.activations import evaluation_terms, saved_terms, transient_terms
from planner.parts.loss import stock_loss_terms, stock_loss_work
from planner.parts.runtime import allocated_runtime_terms
from planner.parts.sizes import evaluation_tokens, sizes_of
from planner.parts.static import base_work, model_terms, static_terms
from planner.types import ClusterSpec, Environment, ModelSpec, RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    ctx: PlanContext
    optimizations: tuple[Optimization, ...]
    combined: Combined


def whole_shape(config: RunConfig, model: ModelSpec) -> RankShape:
    """A micro-batch of one replica before any optimization: full samples laid end to end in one row, padded."""
    row = padded_length(config.per_device_train_batch_size * config.max_length, config.parallel)
    return RankShape(
        tokens=row,
        row_tokens=row,
        q_heads=model.num_attention_heads,
        kv_heads=model.num_kv_heads,
        attention_tokens=row,
    )


def build_optimizations(config: RunConfig, registry: Registry) -> tuple[Optimization, ...]:
    """The enabled optimizations as objects.

    Raises:
        ConfigError: a name that the registry does not have.
    """
    for setting in config.optimizations:
        if setting.name not in registry:
            raise ConfigError(
                f"There is no optimization {setting.name}.",
                why=f"Known: {', '.join(registry)}.",
                fix="Remove the key, or correct its name.",
            )
    return tuple(instantiate(setting, registry) for setting in config.optimizations)


def context(
    config: RunConfig, model: ModelSpec, cluster: ClusterSpec, environment: Environment,
    optimizations: tuple[Optimization, ...],
) -> PlanContext:  # fmt: skip
    shape = whole_shape(config, model)
    for optimization in optimizations:
        shape = optimization.reshape(shape)
    return PlanContext(config=config, model=model, cluster=cluster, environment=environment, shape=shape)


def account(
    config: RunConfig, model: ModelSpec, cluster: ClusterSpec, environment: Environment, registry: Registry,
    *, built: Mapping[str, Optimization] | None = None,
) -> Account:  # fmt: skip
    """Terms and work of one rank. All ranks of a plan hold equal shards.

    Raises:
        ConfigError: a length, batch size or accumulation below 1, or an unknown optimization.
    """
    refuse_impossible_counts(config)
    optimizations = tuple(built.values()) if built is not None else build_optimizations(config, registry)
    # every run chooses an attention kernel, asked for or not (core/train/build.py)
    implied = [registry[name]() for name in ("flash_attention",) if name in registry and not config.optimization(name)]
    ctx = context(config, model, cluster, environment, optimizations)
    s = sizes_of(ctx)
    base = (
        *static_terms(ctx, s),
        *model_terms(s, evaluation_tokens(ctx)),
        *saved_terms(s, model),
        *transient_terms(s),
        *evaluation_terms(s, evaluation_tokens(ctx)),
        *stock_loss_terms(s, evaluation_tokens(ctx)),
        *((*cpu.load_terms(ctx), *cpu.resident_terms(ctx)) if s.on_cpu else allocated_runtime_terms(ctx)),
    )
    work = (*base_work(ctx, s), *stock_loss_work(s))
    effects = [(optimization.name, optimization.effect(ctx)) for optimization in (*optimizations, *implied)]
    combined = combine(base, work, effects)
    return Account(ctx=ctx, optimizations=optimizations, combined=combined)
