"""The best combinations for the hardware at hand, and the inverse questions: how long, how large a batch.

Every candidate is priced on the numeric path (bytes by instant, seconds), which is the same arithmetic that plans
print. Called by app/services/planning.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from planner.account import Account, account, context, tally
from planner.checks import collect_issues
from planner.errors import ConfigError
from planner.explain import why_it_fits, why_not
from planner.host import disk_bytes, host_bytes
from planner.optimization import Registry, knob_defaults
from planner.plan import Footprint, footprint, judge
from planner.space import Problem, candidates
from planner.time import step_seconds
from planner.types import (
    INSTANTS,
    Alternative,
    ClusterSpec,
    Environment,
    Instant,
    ModelSpec,
    OptimizationSetting,
    RunConfig,
    Verdict,
)

Goal = Literal["fastest", "longest", "smallest"]
GOALS: tuple[Goal, ...] = ("fastest", "longest", "smallest")
INDEPENDENT_ERRORS = frozenset({"length-beyond-model", "lora-targets"})  # of the length, of knobs that stay
LENGTH_STEP = 256  # lengths are answered in whole steps of this
LONGEST_CONSIDERED = 1 << 24
LARGEST_BATCH_CONSIDERED = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    config: RunConfig
    result: Account
    sizes: Footprint
    host_bytes: int  # of one node
    verdict: Verdict
    tokens_per_second: float

    @property
    def peak_instant(self) -> Instant:
        return max(INSTANTS, key=lambda instant: self.sizes.by_instant[instant])


def recommend(
    *,
    config: RunConfig,
    model: ModelSpec,
    cluster: ClusterSpec,
    environment: Environment,
    registry: Registry,
    goal: str = "fastest",
    limit: int = 8,
    expandable_segments: bool = True,
) -> tuple[Alternative, ...]:
    """The best ``limit`` combinations: those that fit first, by the goal, then those that miss least.

    The method of the config (full, lora, qlora) is kept ahead of others, what is not available is never named, and
    rank, targets and other knobs stay as they are.

    Raises:
        ConfigError: ``goal`` is not one of GOALS.
    """
    if goal not in GOALS:
        raise ConfigError(f"The goal {goal} is unknown.", why=f"Known: {', '.join(GOALS)}.", fix="Use goal fastest.")
    problem = Problem(
        config=config, model=model, cluster=cluster, environment=environment, registry=registry,
        expandable_segments=expandable_segments,
    )  # fmt: skip
    priced = _distinct(candidate for choice in candidates(problem) if (candidate := price(problem, choice)) is not None)
    ranked = sorted(priced, key=_ranking(problem, goal))
    best = _reference_speed(problem, priced)
    return tuple(_alternative(problem, candidate, best) for candidate in ranked[:limit])


def longest_length(
    *,
    config: RunConfig,
    model: ModelSpec,
    cluster: ClusterSpec,
    environment: Environment,
    registry: Registry,
    expandable_segments: bool = True,
) -> int:
    """The longest max_length, in steps of 256 tokens, whose point value is within usable; 0 when none is.

    The model's own maximum does not bound it: beyond, a plan asks for rope_scaling.
    """
    problem = Problem(
        config=config, model=model, cluster=cluster, environment=environment, registry=registry,
        expandable_segments=expandable_segments,
    )  # fmt: skip

    def fits(steps: int) -> bool:
        return _holds(problem, replace(config, max_length=steps * LENGTH_STEP))

    return LENGTH_STEP * largest(fits, LONGEST_CONSIDERED // LENGTH_STEP)


def largest_batch(
    *,
    config: RunConfig,
    model: ModelSpec,
    cluster: ClusterSpec,
    environment: Environment,
    registry: Registry,
    expandable_segments: bool = True,
) -> int:
    """The largest per_device_train_batch_size whose point value is within usable; 0 when 1 does not fit."""
    problem = Problem(
        config=config, model=model, cluster=cluster, environment=environment, registry=registry,
        expandable_segments=expandable_segments,
    )  # fmt: skip

    def fits(batch: int) -> bool:
        return _holds(problem, replace(config, per_device_train_batch_size=batch))

    return largest(fits, LARGEST_BATCH_CONSIDERED)


def largest(holds: Callable[[int], bool], bound: int) -> int:
    """The largest n in 1..bound with holds(n), for a predicate that stays false once it is; 0 when holds(1) is."""
    if not holds(1):
        return 0
    low, high = 1, 2
    while high <= bound and holds(high):
        low, high = high, 2 * high
    high = min(high, bound + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def price(problem: Problem, config: RunConfig, *, refuse: bool = True) -> Candidate | None:
    """Bytes, verdict and speed; None when a check refuses it, unless ``refuse`` is off."""
    optimizations = tuple(problem.built(setting) for setting in config.optimizations)
    ctx = context(config, problem.model, problem.cluster, problem.environment, optimizations)
    # an error that the config at hand has for another reason (its length, say) says nothing about the candidate
    if refuse and any(
        issue.severity == "error" and issue.code not in INDEPENDENT_ERRORS
        for issue in collect_issues(ctx, optimizations)
    ):
        return None
    result = tally(ctx, optimizations, problem.registry, plain=problem.plain(ctx))
    if refuse and result.combined.issues:
        return None
    sizes = footprint(result, expandable_segments=problem.expandable_segments)
    tokens = (
        config.per_device_train_batch_size * config.max_length * config.parallel.data
        * config.gradient_accumulation_steps
    )  # fmt: skip
    host = host_bytes(result, sizes.used)
    return Candidate(
        config=config, result=result, sizes=sizes, host_bytes=host, verdict=_verdict(problem, result, sizes, host),
        tokens_per_second=tokens / step_seconds(result.ctx, result.combined.work, result.combined.specs),
    )  # fmt: skip


def _reference_speed(problem: Problem, priced: list[Candidate]) -> float:
    """Tokens/s of the fastest that fits by the same method; of the fastest tight one, or by another method, if none."""
    for same_method in (True, False):
        for verdict in ("fits", "tight"):
            speeds = [
                candidate.tokens_per_second
                for candidate in priced
                if candidate.verdict == verdict
                and (candidate.config.method == problem.config.method or not same_method)
            ]
            if speeds:
                return max(speeds)
    return 0.0


def _distinct(priced: Iterable[Candidate]) -> list[Candidate]:
    """Without those that an earlier candidate equals in bytes and speed: more head groups than change the peak."""
    seen: dict[tuple[int, float], Candidate] = {}
    for candidate in priced:
        seen.setdefault((candidate.sizes.used, candidate.tokens_per_second), candidate)
    return list(seen.values())


def _verdict(problem: Problem, result: Account, sizes: Footprint, host: int) -> Verdict:
    gpu = judge(sizes.used, sizes.band[1], problem.cluster.gpu.usable_bytes)
    others = [judge(host, host, problem.cluster.host_bytes_per_node)]
    if problem.cluster.disk_free_bytes is not None:
        disk = disk_bytes(result)
        others.append(judge(disk, disk, problem.cluster.disk_free_bytes))
    if "over" in (gpu, *others):
        return "over"
    return "tight" if "tight" in (gpu, *others) else "fits"


def _holds(problem: Problem, config: RunConfig) -> bool:
    result = account(config, problem.model, problem.cluster, problem.environment, problem.registry)
    sizes = footprint(result, expandable_segments=problem.expandable_segments)
    return _verdict(problem, result, sizes, host_bytes(result, sizes.used)) != "over"


def _ranking(problem: Problem, goal: str) -> Callable[[Candidate], tuple[Any, ...]]:
    verdicts = {"fits": 0, "tight": 1, "unverified": 1, "over": 2}

    def key(candidate: Candidate) -> tuple[Any, ...]:
        used, parts = candidate.sizes.used, len(candidate.config.optimizations)
        other_method = candidate.config.method != problem.config.method
        if candidate.verdict == "over":
            return (2, other_method, used, parts)
        if goal == "smallest":
            return (0, other_method, used, -candidate.tokens_per_second, parts)
        if goal == "longest":
            length = longest_length(
                config=candidate.config, model=problem.model, cluster=problem.cluster,
                environment=problem.environment, registry=problem.registry,
                expandable_segments=problem.expandable_segments,
            )  # fmt: skip
            return (0, other_method, -length, -candidate.tokens_per_second, parts)
        return (verdicts[candidate.verdict], other_method, -candidate.tokens_per_second, parts)

    return key


def _alternative(problem: Problem, candidate: Candidate, best: float) -> Alternative:
    sizes, usable = candidate.sizes, problem.cluster.gpu.usable_bytes
    same_method = candidate.config.method == problem.config.method
    if sizes.used > usable:
        why = why_not(sizes.used - usable, candidate.peak_instant)
    elif candidate.verdict == "over":
        why = "host memory or disk does not suffice"
    else:
        speed = candidate.tokens_per_second / best if best else 1.0
        why = why_it_fits(sizes.used, usable, speed, candidate.config.optimizations, same_method=same_method)
    return Alternative(
        optimizations=candidate.config.optimizations,
        changes=changes_between(problem.registry, problem.config, candidate.config),
        verdict=candidate.verdict,
        used_bytes=sizes.used,
        tokens_per_second=candidate.tokens_per_second,
        why=why,
    )


def changes_between(registry: Registry, old: RunConfig, new: RunConfig) -> tuple[tuple[str, Any], ...]:
    """Preset keys that lead from one config to the other; False switches an optimization off."""
    before = {setting.name: setting for setting in old.optimizations}
    after = {setting.name: setting for setting in new.optimizations}
    changes: list[tuple[str, Any]] = []
    if old.parallel != new.parallel:
        changes.append(("sequence_parallel", new.parallel.sequence))
    for name in registry:
        if before.get(name) == after.get(name):
            continue
        changes.append((name, False if name not in after else preset_value(registry, after[name])))
    if old.optim != new.optim:
        changes.append(("optim", new.optim))
    return tuple(changes)


def preset_value(registry: Registry, setting: OptimizationSetting) -> Any:
    """As a person writes it: true, the main knob alone, or the knobs that differ from their defaults."""
    cls = registry[setting.name]
    defaults = knob_defaults(cls)
    set_knobs = {name: value for name, value in setting.knobs if value != defaults[name]}
    main = cls.main_knob
    if main is not None and not set_knobs.keys() - {main}:
        return setting.as_dict()[main]
    return set_knobs or True
