"""make_plan: what every GPU, the host and the disk will hold, whether it fits, how fast it is. Called by app/services.

Fit is judged on what NVML (or the resident set, on a CPU) will show: allocated tensors + the allocator's holes +
context. Same input, same output; nothing is read or measured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.account import Account, account
from planner.calibration import Experience, with_offset, with_slope
from planner.checks import collect_issues
from planner.host import disk_store, host_store
from planner.mfu import mfu_causal
from planner.optimization import Registry
from planner.parts import cpu, runtime
from planner.parts.holes import reserved_terms
from planner.time import step_seconds
from planner.types import (
    Calibration,
    ClusterSpec,
    Environment,
    GpuPlan,
    Instant,
    ModelSpec,
    Plan,
    RunConfig,
    Term,
    Verdict,
)
from planner.validated import unverified_issue

FITS_SHARE = 0.92  # of the usable bytes: below it, by the upper band, a plan fits
SEVERITY: dict[Verdict, int] = {"fits": 0, "unverified": 1, "tight": 2, "over": 3}
BAND_SHARE = {"exact": 0.0, "modelled": 0.02, "measured": 0.15, "assumed": 0.35}  # by basis of a term


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The three readings of one rank, in bytes, without texts."""

    by_instant: Mapping[Instant, int]
    allocated: int
    reserved: int
    used: int
    band: tuple[int, int]
    context_terms: tuple[Term, ...]


def footprint(
    result: Account, *, expandable_segments: bool, calibration: Calibration | None = None
) -> Footprint:  # fmt: skip
    specs, ctx = result.combined.specs, result.ctx
    by_instant = result.combined.bytes_by_instant()
    peak_instant = max(by_instant, key=lambda instant: by_instant[instant])
    allocated = by_instant[peak_instant]
    if ctx.cluster.gpu.kind == "cpu":
        holes, context = cpu.heap_terms(specs, by_instant), cpu.process_terms()
    else:
        holes = reserved_terms(ctx, specs, by_instant, expandable=expandable_segments)
        context = runtime.context_terms(ctx)
    if calibration is not None:
        context = with_offset(context, calibration, ctx.cluster.gpu)
    reserved = allocated + sum(term.bytes for term in holes)
    used = reserved + sum(term.bytes for term in context)
    if calibration is not None:
        slack = calibration.band_share * used
    else:
        slack = sum(BAND_SHARE[spec.basis] * spec.bytes for spec in specs if peak_instant in spec.instants)
        slack += sum(BAND_SHARE[term.basis] * term.bytes for term in (*holes, *context))
    return Footprint(
        by_instant=by_instant, allocated=allocated, reserved=reserved, used=used,
        band=(max(allocated, used - round(slack)), used + round(slack)), context_terms=(*holes, *context),
    )  # fmt: skip


def weights_bytes(result: Account) -> int:
    """Of the base model on one GPU at the instant that holds most of them."""
    specs = [spec for spec in result.combined.specs if spec.part == "weights"]
    instants = {instant for spec in specs for instant in spec.instants}
    return max((sum(s.bytes for s in specs if instant in s.instants) for instant in instants), default=0)


def judge(used: int, upper: int, usable: int) -> Verdict:
    """fits: the upper band stays below 92 % of what is usable. over: the point value exceeds it. tight: between."""
    if used > usable:
        return "over"
    return "fits" if upper < FITS_SHARE * usable else "tight"


def worst_verdict(cluster: ClusterSpec, sizes: Footprint, *, host: int, disk: int, unseen: bool = False) -> Verdict:
    """Of GPU, host and disk; what would fit and is ``unseen`` in any measured run is unverified.

    A CPU process is judged by its share; all of them together by the host's memory.
    """
    verdicts = [
        judge(sizes.used, sizes.band[1], cluster.gpu.usable_bytes),
        judge(host, host, cluster.host_bytes_per_node),
    ]
    if cluster.disk_free_bytes is not None:
        verdicts.append(judge(disk, disk, cluster.disk_free_bytes))
    if unseen:
        verdicts.append("unverified")
    return max(verdicts, key=lambda verdict: SEVERITY[verdict])


def make_plan(
    *,
    config: RunConfig,
    model: ModelSpec,
    cluster: ClusterSpec,
    environment: Environment,
    registry: Registry,
    alternatives: bool = False,
    goal: str = "fastest",
    experience: Experience | None = None,
    expandable_segments: bool = True,
) -> Plan:
    """The plan of one configuration. What is wrong with it is in ``issues``; the numbers are given all the same.

    ``goal`` ranks the alternatives (planner/search.py), ``experience`` holds the rehearsals of this machine.
    ``expandable_segments`` is how longfit starts its workers (PYTORCH_ALLOC_CONF).

    Raises:
        ConfigError: a length, batch size or accumulation below 1, or an optimization that the registry does not have.
    """
    experience = experience or Experience()
    calibration = experience.calibration(config)
    result = account(config, model, cluster, environment, registry)
    if calibration is not None:
        result = with_slope(result, calibration)
    sizes = footprint(result, expandable_segments=expandable_segments, calibration=calibration)
    unseen = experience.unseen(config, model, cluster.gpu)
    gpu = GpuPlan(
        index=0, usable_bytes=cluster.gpu.usable_bytes, allocated=result.combined.breakdown(),
        reserved_bytes=sizes.reserved, used_bytes=sizes.used, band_bytes=sizes.band, context_terms=sizes.context_terms,
    )  # fmt: skip
    host, disk = host_store(result, sizes.used), disk_store(result)
    needed, free = host.needed_bytes, cluster.disk_free_bytes
    seconds = step_seconds(result.ctx, result.combined.work, result.combined.specs)
    seconds /= 1.0 if calibration is None else calibration.speed
    batch = batch_arithmetic(result)
    plan = Plan(
        config=config, model=model, cluster=cluster, environment=environment,
        gpus=tuple(replace(gpu, index=index) for index in range(config.parallel.world)),
        host_bytes=host.bytes, host_verdict=judge(needed, needed, cluster.host_bytes_per_node), host_terms=host.terms,
        disk_bytes=disk.bytes, disk_verdict="unverified" if free is None else judge(disk.bytes, disk.bytes, free),
        disk_terms=disk.terms, verdict=worst_verdict(cluster, sizes, host=needed, disk=disk.bytes, unseen=bool(unseen)),
        seconds_per_step=seconds, tokens_per_second=batch["tokens_per_step"] / seconds, batch=batch,
        issues=(
            *result.combined.issues, *collect_issues(result.ctx, result.optimizations),
            *((unverified_issue(unseen),) if unseen else ()),
        ),
        calibration=calibration,
        mfu_causal=mfu_causal(result.ctx, seconds),
    )  # fmt: skip
    beyond = weights_bytes(result) > cluster.gpu.usable_bytes
    if not (beyond or alternatives):
        return plan
    from planner.floor import floor_issue  # the search plans too, and most plans are made without
    from planner.search import best_of
    from planner.space import Problem

    problem = Problem(
        config=config, model=model, cluster=cluster, environment=environment, registry=registry,
        experience=experience, expandable_segments=expandable_segments,
    )  # fmt: skip
    return replace(
        plan,
        issues=(*plan.issues, floor_issue(problem, result)) if beyond else plan.issues,
        alternatives=best_of(problem, goal=goal) if alternatives else (),
    )


def batch_arithmetic(result: Account) -> dict[str, int | float]:
    """Who does what in one optimizer step."""
    config, shape = result.ctx.config, result.ctx.shape
    degrees = config.parallel
    rows = config.per_device_train_batch_size * degrees.data * config.gradient_accumulation_steps
    return {
        "world": degrees.world,
        "data": degrees.data,
        "sequence": degrees.sequence,
        "ring": degrees.ring,
        "ulysses": degrees.ulysses,
        "accumulation": config.gradient_accumulation_steps,
        "rows_per_step": rows,
        "tokens_per_step": rows * config.max_length,
        "tokens_per_rank": shape.tokens,
        "padding_tokens": shape.row_tokens - config.per_device_train_batch_size * config.max_length,
    }
