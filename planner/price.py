"""Bytes, verdict and speed of one candidate on the numeric path: the arithmetic of plans, without texts.

Called by everything that tries many configurations: search, ladder, floor, sizing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.account import Account, context, tally
from planner.calibration import with_slope
from planner.checks import collect_issues
from planner.host import disk_bytes, host_needed_bytes
from planner.optimization import Optimization, PlanContext
from planner.plan import Footprint, footprint, worst_verdict
from planner.space import Problem
from planner.time import step_seconds
from planner.types import INSTANTS, Instant, Issue, RunConfig, Verdict

INDEPENDENT_ERRORS = frozenset({"length-beyond-model", "lora-targets"})  # of the length, of knobs that stay
ROOMY: tuple[Verdict, ...] = ("fits", "unverified")  # the upper band leaves room
Wall = Literal["gpu", "host", "disk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    config: RunConfig
    result: Account
    sizes: Footprint
    host_bytes: int  # needed on one node
    disk_bytes: int
    verdict: Verdict
    tokens_per_second: float

    @property
    def peak_instant(self) -> Instant:
        return max(INSTANTS, key=lambda instant: self.sizes.by_instant[instant])


def price(problem: Problem, config: RunConfig, *, refuse: bool = True) -> Candidate | None:
    """None when a check refuses it, unless ``refuse`` is off."""
    optimizations = tuple(problem.built(setting) for setting in config.optimizations)
    ctx = context(config, problem.model, problem.cluster, problem.environment, optimizations)
    # an error that the config at hand has for another reason (its length, say) says nothing about the candidate
    if refuse and _refusals(ctx, optimizations):
        return None
    result = tally(ctx, optimizations, problem.registry, plain=problem.plain(ctx))
    if refuse and result.combined.issues:
        return None
    calibration = problem.experience.calibration(config)
    if calibration is not None:
        result = with_slope(result, calibration)
    sizes = footprint(result, expandable_segments=problem.expandable_segments, calibration=calibration)
    host, disk = host_needed_bytes(result, sizes.used), disk_bytes(result)
    tokens = (
        config.per_device_train_batch_size * config.max_length * config.parallel.data
        * config.gradient_accumulation_steps
    )  # fmt: skip
    seconds = step_seconds(result.ctx, result.combined.work, result.combined.specs)
    seconds /= 1.0 if calibration is None else calibration.speed
    unseen = bool(problem.experience.unseen(config, problem.model, problem.cluster.gpu))
    return Candidate(
        config=config, result=result, sizes=sizes, host_bytes=host, disk_bytes=disk,
        verdict=worst_verdict(problem.cluster, sizes, host=host, disk=disk, unseen=unseen),
        tokens_per_second=tokens / seconds,
    )  # fmt: skip


def _refusals(ctx: PlanContext, optimizations: tuple[Optimization, ...]) -> list[Issue]:
    issues = collect_issues(ctx, optimizations)
    return [issue for issue in issues if issue.severity == "error" and issue.code not in INDEPENDENT_ERRORS]


def first_refusal(problem: Problem, config: RunConfig) -> str:
    """Why a check refuses this candidate, in words; empty when none does."""
    optimizations = tuple(problem.built(setting) for setting in config.optimizations)
    ctx = context(config, problem.model, problem.cluster, problem.environment, optimizations)
    issues = _refusals(ctx, optimizations)
    return " ".join(part for part in (issues[0].what, issues[0].why) if part) if issues else ""


def shortfall(problem: Problem, candidate: Candidate) -> tuple[Wall, int] | None:
    """The first wall that a candidate runs into, and the bytes that are missing there."""
    cluster = problem.cluster
    walls: tuple[tuple[Wall, int, int | None], ...] = (
        ("gpu", candidate.sizes.used, cluster.gpu.usable_bytes),
        ("host", candidate.host_bytes, cluster.host_bytes_per_node),
        ("disk", candidate.disk_bytes, cluster.disk_free_bytes),
    )
    return next(((wall, needed - there) for wall, needed, there in walls if there is not None and needed > there), None)
