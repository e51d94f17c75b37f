"""What a plan refuses or warns about beside the optimizations' own checks: lengths, degrees, dtype against the card."""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import ConfigError
from planner.layer_policy import CARRIED_OUT, layer_engine_obstacle
from planner.model_checks import planned_only_models
from planner.optimization import Optimization, PlanContext
from planner.parts.optimizer import is_8bit
from planner.rope import check_positions
from planner.types import Issue, RunConfig
from planner.update_checks import update_issues

PLANNED_ONLY = "planned-only"  # an issue of this code keeps a run from starting, and a plan from nothing
DENSE_SCORES_TOKENS = 4096  # beyond this, attention that forms the score matrix is refused


def refuse_impossible_counts(config: RunConfig) -> None:
    """What leaves nothing to plan.

    Raises:
        ConfigError: max_length, a batch size or the accumulation is below 1.
    """
    counts = {
        "max_length": config.max_length,
        "per_device_train_batch_size": config.per_device_train_batch_size,
        "per_device_eval_batch_size": config.per_device_eval_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
    }
    for key, value in counts.items():
        if value < 1:
            raise ConfigError(f"{key} is {value}.", why="It counts at least 1.", fix=f"Set {key} to 1 or more.")


def collect_issues(ctx: PlanContext, optimizations: Sequence[Optimization]) -> tuple[Issue, ...]:
    """Errors first; every check of every enabled optimization."""
    issues = [
        *check_positions(ctx.config, ctx.model),
        *_world(ctx),
        *_dtype(ctx),
        *_precision(ctx),
        *_engine(ctx),
        *update_issues(ctx),
        *_experts(ctx),
        *_planned_only(ctx, optimizations),
        *(issue for optimization in optimizations for issue in optimization.check(ctx)),
    ]
    rank = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(issues, key=lambda issue: rank[issue.severity]))


def _world(ctx: PlanContext) -> list[Issue]:
    degrees, gpus = ctx.config.parallel, ctx.cluster.num_gpus
    if degrees.world == gpus:
        return []
    return [
        Issue(
            code="world-mismatch", severity="error",
            what=f"data {degrees.data} x ring {degrees.ring} x ulysses {degrees.ulysses} = {degrees.world} ranks, but "
            f"the plan has {gpus} GPU(s).",
            why="Each rank is one GPU.",
            fix="Change the number of GPUs, or the degrees.",
        )
    ]  # fmt: skip


def _engine(ctx: PlanContext) -> list[Issue]:
    """The layer engine where it cannot run; on a GPU, why it is not used."""
    obstacle = layer_engine_obstacle(ctx.config, ctx.model)
    if obstacle is None:
        return []
    if ctx.config.engine == "layer":
        return [
            Issue(
                code="engine-layer", severity="error", what="engine: layer cannot run this.",
                why=f"The layer engine cannot: {obstacle}.", fix="Use engine: auto.", suggestion=(("engine", "auto"),),
            )
        ]  # fmt: skip
    if ctx.cluster.gpu.kind == "cpu":
        return []
    return [
        Issue(
            code="engine-module", severity="info", what="transformers' modules compute the decoder layers.",
            why=f"The layer engine, which is faster and leaner, cannot: {obstacle}.",
        )
    ]  # fmt: skip


def _experts(ctx: PlanContext) -> list[Issue]:
    """What adapters leave alone in a mixture of experts, and the GPUs whose products of experts are planned."""
    issues, gpu = [], ctx.cluster.gpu
    if ctx.model.experts is None:
        return []
    if gpu.kind == "cuda" and (gpu.compute_capability or (0, 0)) < (8, 0):
        issues.append(
            Issue(
                code="experts-device", severity="error",
                what=f"{ctx.model.name} is a mixture of experts, and {gpu.name} has no grouped products.",
                why="torch has them from compute capability 8.0 on; what stands in for them below makes gradients of "
                "frozen experts, which no plan counts.",
                fix="Use an Ampere or newer GPU, or a dense model.",
            )
        )  # fmt: skip
    if ctx.config.method != "full":
        issues.append(
            Issue(
                code="experts-frozen", severity="info", what="Router and experts stay as they are.",
                why=f"Adapters cover {', '.join(ctx.model.linears)}: experts are three-dimensional parameters, which "
                "PEFT reaches by target_parameters only, and which qlora leaves in 16 bits.",
            )
        )  # fmt: skip
    return issues


def _dtype(ctx: PlanContext) -> list[Issue]:
    gpu, dtype, length = ctx.cluster.gpu, ctx.config.dtype, ctx.config.max_length
    if gpu.kind == "cpu":
        if dtype == "float16":
            return [
                Issue(
                    code="dtype-float16-cpu", severity="error", what="dtype float16 on a CPU.",
                    why="It is slow there and overflows in training.", fix="Set dtype: float32.",
                    suggestion=(("dtype", "float32"),),
                )
            ]  # fmt: skip
        return []
    capability = gpu.compute_capability or (0, 0)
    if dtype == "bfloat16" and capability < (8, 0):
        return [
            Issue(
                code="dtype-bfloat16", severity="error",
                what=f"{gpu.name} (compute capability {capability[0]}.{capability[1]}) has no bfloat16.",
                why="It needs 8.0 (Ampere) or newer.", fix="Set dtype: float16.", suggestion=(("dtype", "float16"),),
            )
        ]  # fmt: skip
    if (dtype == "float32" or capability < (8, 0)) and length > DENSE_SCORES_TOKENS:
        reason = "float32" if dtype == "float32" else f"compute capability {capability[0]}.{capability[1]}"
        heads = ctx.shape.q_heads
        return [
            Issue(
                code="no-flash-attention", severity="error",
                what=f"There is no flash attention kernel for {reason}, and max_length is {length}.",
                why=f"Scores of one layer would take 4 * {heads} * {length}^2 = {4 * heads * length**2} bytes.",
                fix=f"Set dtype: bfloat16 on an Ampere or newer GPU, or max_length: {DENSE_SCORES_TOKENS} or less.",
            )
        ]  # fmt: skip
    return []


def _precision(ctx: PlanContext) -> list[Issue]:
    if ctx.config.method == "full" and ctx.config.dtype != "float32" and ctx.config.master_weights == "none":
        states = "" if is_8bit(ctx.config) else " and AdamW states"
        wider = "Set master_weights: stochastic (states in float32) or fp32 (and a float32 copy), or use"
        if ctx.config.optimization("galore") is not None:  # its states go with no master weights
            wider = "Set dtype: float32 where there is room, or use"
        return [
            Issue(
                code="adamw-16-bit", severity="warning",
                what=f"Full fine-tuning keeps parameters{states} in {ctx.config.dtype}.",
                why="Updates smaller than 1/256 of a weight are rounded away.",
                fix=f"{wider} lora with adapter_dtype: float32.",
            )
        ]  # fmt: skip
    return []


def _planned_only(ctx: PlanContext, optimizations: Sequence[Optimization]) -> list[Issue]:
    """What this version plans and does not train with: a launch refuses it (app/services/planning.py)."""
    carried_out = CARRIED_OUT if ctx.config.engine == "layer" else ()
    titles = [o.name for o in optimizations if not o.available and o.name not in carried_out]
    reasons = [
        *planned_only_models(ctx.model, method=ctx.config.method),
        *(
            (
                f"{title} is planned only: it cannot be trained with yet.", "The numbers are those that it will have.",
                f"Leave {title} out to train.",
            )
            for title in titles
        ),
    ]  # fmt: skip
    return [Issue(code=PLANNED_ONLY, severity="warning", what=what, why=why, fix=fix) for what, why, fix in reasons]
