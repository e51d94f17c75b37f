"""From a configuration to combined terms and work of one rank: the plain path, then every enabled optimization.

Called by planner/plan.py (with texts, once) and planner/search.py (for each candidate).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.checks import refuse_impossible_counts
from planner.combine import Combined, combine
from planner.effects import TermSpec, Work
from planner.errors import ConfigError
from planner.layer_policy import CARRIED_OUT, layer_engine_obstacle
from planner.optimization import Optimization, PlanContext, RankShape, Registry, instantiate
from planner.parallel import padded_length
from planner.parts import cpu, layer_engine
from planner.parts.activations import evaluation_terms, output_norm_terms, saved_terms, transient_terms
from planner.parts.expert_layer import expert_terms
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
    return PlanContext(
        config=config, model=model, cluster=cluster, environment=environment, shape=shape,
        sizes=sizes_of(config, model, cluster, shape),
    )  # fmt: skip


def account(
    config: RunConfig, model: ModelSpec, cluster: ClusterSpec, environment: Environment, registry: Registry
) -> Account:
    """Terms and work of one rank. All ranks of a plan hold equal shards.

    Raises:
        ConfigError: a length, batch size or accumulation below 1, an unknown optimization, or a knob out of range.
    """
    refuse_impossible_counts(config)
    optimizations = build_optimizations(config, registry)
    return tally(context(config, model, cluster, environment, optimizations), optimizations, registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPath:
    """Full training without any optimization, for one shape."""

    terms: tuple[TermSpec, ...]
    work: tuple[Work, ...]


def plain_path(ctx: PlanContext) -> PlainPath:
    """Of the context it reads shape, model, cluster, dtype, optimizer, batch sizes and accumulation: not the
    optimizations."""
    s, num_evaluation_tokens = ctx.sizes, evaluation_tokens(ctx)
    return PlainPath(
        terms=(
            *static_terms(ctx, s),
            *model_terms(s, num_evaluation_tokens),
            *saved_terms(s, ctx.model),
            *transient_terms(s),
            *output_norm_terms(s, ctx.model, accumulates=ctx.config.gradient_accumulation_steps > 1),
            *expert_terms(s, ctx.model.experts, num_evaluation_tokens),
            *evaluation_terms(s, num_evaluation_tokens),
            *stock_loss_terms(s, num_evaluation_tokens),
            *((*cpu.load_terms(ctx), *cpu.resident_terms(ctx)) if s.on_cpu else allocated_runtime_terms(ctx)),
        ),
        work=(*base_work(ctx, s), *stock_loss_work(s)),
    )


def runs_by_layers(ctx: PlanContext) -> bool:
    """What the layer engine cannot run is refused, and planned as the modules would run it."""
    return ctx.config.engine == "layer" and layer_engine_obstacle(ctx.config, ctx.model) is None


def tally(
    ctx: PlanContext, optimizations: tuple[Optimization, ...], registry: Registry, *, plain: PlainPath | None = None
) -> Account:
    """The same for what was built already: the search asks for one context after the other."""
    plain = plain or plain_path(ctx)
    # every run chooses an attention kernel, asked for or not (core/train/build.py)
    chooses = "flash_attention" in registry and ctx.config.optimization("flash_attention") is None
    implied = (registry["flash_attention"](),) if chooses else ()
    by_layers = runs_by_layers(ctx)
    effects = [
        (optimization.name, optimization.effect(ctx))
        for optimization in (*optimizations, *implied)
        if not (by_layers and optimization.name in CARRIED_OUT)
    ]
    if by_layers:
        effects.append((layer_engine.NAME, layer_engine.layer_engine_effect(ctx)))
    return Account(ctx=ctx, optimizations=optimizations, combined=combine(plain.terms, plain.work, effects))
