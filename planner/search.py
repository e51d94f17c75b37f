"""The best combinations for the hardware at hand, and the inverse questions: how long, how large a batch.

Every candidate is priced on the numeric path (bytes by instant, seconds), which is the same arithmetic that plans
print. Called by app/services/planning.py. Which hardware, and how many: planner/sizing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from planner.calibration import Experience
from planner.changes import changes_between
from planner.cost import dollars_per_million_tokens
from planner.errors import ConfigError
from planner.explain import why_it_fits, why_not
from planner.goals import GOALS
from planner.optimization import Registry
from planner.price import ROOMY, Candidate, price, shortfall
from planner.rope import reach
from planner.space import Problem, candidates_by_method, sharded, streamed, updated_in_backward
from planner.spend import spend, tighten
from planner.types import Alternative, ClusterSpec, Environment, ModelSpec, RunConfig

LENGTH_STEP = 256  # lengths are answered in whole steps of this
LARGEST_BATCH_CONSIDERED = 1 << 14
MOST_SPENT = 16  # candidates, the fastest that fit, whose memory left over is spent


def recommend(
    *,
    config: RunConfig,
    model: ModelSpec,
    cluster: ClusterSpec,
    environment: Environment,
    registry: Registry,
    goal: str = "fastest",
    limit: int = 8,
    experience: Experience | None = None,
    expandable_segments: bool = True,
) -> tuple[Alternative, ...]:
    """``best_of`` for what a caller from outside has."""
    problem = Problem(
        config=config, model=model, cluster=cluster, environment=environment, registry=registry,
        experience=experience or Experience(), expandable_segments=expandable_segments,
    )  # fmt: skip
    return best_of(problem, goal=goal, limit=limit)


def best_of(
    problem: Problem, *, goal: str = "fastest", limit: int = 8, only_this_method: bool = False
) -> tuple[Alternative, ...]:
    """The best ``limit`` combinations: those that fit first, by the goal, then those that miss least.

    The method of the config (full, lora, qlora) is kept ahead of others, or kept alone (``only_this_method``). What is
    not available is never named; rank, targets and other knobs stay as they are. ``cheapest`` is dollars a token: on
    given hardware the fastest.

    Raises:
        ConfigError: ``goal`` is not one of GOALS, or ``cheapest`` on a GPU without a price.
    """
    if goal not in GOALS:
        raise ConfigError(f"The goal {goal} is unknown.", why=f"Known: {', '.join(GOALS)}.", fix="Use goal fastest.")
    if goal == "cheapest" and problem.cluster.gpu.dollars_per_hour is None:
        raise ConfigError(
            f"The goal cheapest has no answer on {problem.cluster.gpu.name}.",
            why="The catalog has no price for it (planner/catalog/prices.py).",
            fix="Use goal fastest, which is the cheapest on hardware that is there anyway.",
        )
    priced = _priced(problem, goal, limit, only_this_method)
    lengths = _lengths(problem, priced, limit) if goal == "longest" else {}
    ranked = sorted(priced, key=_ranking(problem, goal, lengths))
    best = _reference_speed(problem, ranked)
    return tuple(
        alternative_of(problem, candidate, best=best, longest=lengths.get(id(candidate)))
        for candidate in ranked[:limit]
    )


def _priced(problem: Problem, goal: str, limit: int, only_this_method: bool) -> list[Candidate]:
    """Every combination that no check refuses; full fine-tuning that leaves no room on shards, too; by the method at
    hand, where none leaves room, the lowest with the MLP by tiles, adapters on shards or over streamed weights, and
    full fine-tuning updated within the backward unless it has room on shards; and where speed decides the fastest with
    memory spent.

    Another method ranks below all that fit by the one at hand: it is left out where these fill the answer.
    """
    priced: list[Candidate] = []
    by_speed = goal in ("fastest", "cheapest")
    for configs in candidates_by_method(problem):
        worthwhile = _without_idle_groups(problem, configs) if by_speed else _all_priced(problem, configs)
        priced = _distinct([*priced, *worthwhile])
        if only_this_method or sum(candidate.verdict in ROOMY for candidate in priced) >= limit:
            break
    own = [candidate for candidate in priced if candidate.config.method == problem.config.method]
    needy = [candidate for candidate in own if candidate.verdict not in ROOMY]
    on_shards: list[Candidate] = []
    if problem.config.method == "full" or len(needy) == len(own):
        on_shards = list(_all_priced(problem, (found for c in needy for found in sharded(problem, c.config))))
        priced = _distinct([*priced, *on_shards])
    if len(needy) == len(own):
        lowest = sorted(own, key=lambda candidate: candidate.sizes.used)[:MOST_SPENT]
        priced = _distinct([*priced, *(tiled for c in lowest if (tiled := tighten(problem, c)) is not None)])
        further = [config for candidate in own for config in streamed(problem, candidate.config)]
        is_roomy = any(candidate.verdict in ROOMY for candidate in on_shards)
        if problem.config.method == "full" and problem.config.update == "step" and not is_roomy:
            further += [updated_in_backward(candidate.config) for candidate in own]
        priced = _distinct([*priced, *_all_priced(problem, further)])
    if not by_speed:
        return priced
    fitting = sorted((c for c in priced if c.verdict in ROOMY), key=_ranking(problem, goal, {}))
    return _distinct([*priced, *(spent for c in fitting[:MOST_SPENT] if (spent := spend(problem, c)) is not None)])


def _all_priced(problem: Problem, configs: Iterable[RunConfig]) -> Iterator[Candidate]:
    return (candidate for config in configs if (candidate := price(problem, config)) is not None)


def _without_idle_groups(problem: Problem, configs: Iterator[RunConfig]) -> Iterator[Candidate]:
    """Head groups only save memory: what has room without them is faster without them. Those without come first."""
    roomy: set[tuple[Any, ...]] = set()
    for config in configs:
        others = tuple(id(setting) for setting in config.optimizations if setting.name != "fake_parallel")
        key = (config.parallel, config.optim, others)  # settings are shared by the configs of one method
        if key in roomy:
            continue
        candidate = price(problem, config)
        if candidate is None:
            continue
        if candidate.verdict in ROOMY:
            roomy.add(key)
        yield candidate


def longest_length(
    *,
    config: RunConfig,
    model: ModelSpec,
    cluster: ClusterSpec,
    environment: Environment,
    registry: Registry,
    experience: Experience | None = None,
    expandable_segments: bool = True,
) -> int:
    """The longest max_length, in steps of 256 tokens, whose point value is within usable; 0 when none is.

    The model's positions bound it, with what the config's rope_scaling adds to them.
    """
    problem = Problem(
        config=config, model=model, cluster=cluster, environment=environment, registry=registry,
        experience=experience or Experience(), expandable_segments=expandable_segments,
    )  # fmt: skip
    return longest(problem, config)


def longest(problem: Problem, config: RunConfig) -> int:
    """The same of ``config``."""

    def fits(steps: int) -> bool:
        return _holds(problem, replace(config, max_length=steps * LENGTH_STEP))

    return LENGTH_STEP * largest(fits, reach(config, problem.model) // LENGTH_STEP)


def _lengths(problem: Problem, priced: list[Candidate], limit: int) -> dict[int, int]:
    """Longest length by id of a candidate; 0 for those that cannot be among the ``limit`` longest of their method."""
    lengths: dict[int, int] = {}
    found: dict[str, list[int]] = {}
    for candidate in sorted(priced, key=lambda candidate: candidate.sizes.used):
        best = found.setdefault(candidate.config.method, [])
        least = best[limit - 1] if len(best) >= limit else 0
        hopeless = candidate.verdict == "over" or (
            least > 0 and not _holds(problem, replace(candidate.config, max_length=least))
        )
        lengths[id(candidate)] = 0 if hopeless else longest(problem, candidate.config)
        best.append(lengths[id(candidate)])
        best.sort(reverse=True)
    return lengths


def largest_batch(
    *,
    config: RunConfig,
    model: ModelSpec,
    cluster: ClusterSpec,
    environment: Environment,
    registry: Registry,
    experience: Experience | None = None,
    expandable_segments: bool = True,
) -> int:
    """The largest per_device_train_batch_size whose point value is within usable; 0 when 1 does not fit."""
    problem = Problem(
        config=config, model=model, cluster=cluster, environment=environment, registry=registry,
        experience=experience or Experience(), expandable_segments=expandable_segments,
    )  # fmt: skip

    def fits(batch: int) -> bool:
        return _holds(problem, replace(config, per_device_train_batch_size=batch))

    return largest(fits, LARGEST_BATCH_CONSIDERED)


def largest(holds: Callable[[int], bool], bound: int) -> int:
    """The largest n in 1..bound with holds(n), for a predicate that stays false once it is; 0 when holds(1) is."""
    if bound < 1 or not holds(1):
        return 0
    low, high = 1, 2
    while high <= bound and holds(high):
        low, high = high, 2 * high
    high = min(high, bound + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _reference_speed(problem: Problem, priced: list[Candidate]) -> float:
    """Tokens/s of the fastest that fits by the same method; of the fastest tight one, or by another method, if none."""
    for same_method in (True, False):
        for verdicts in (ROOMY, ("tight",)):
            speeds = [
                candidate.tokens_per_second
                for candidate in priced
                if candidate.verdict in verdicts
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


def _holds(problem: Problem, config: RunConfig) -> bool:
    candidate = price(problem, config, refuse=False)
    return candidate is not None and candidate.verdict != "over"


def _ranking(problem: Problem, goal: str, lengths: dict[int, int]) -> Callable[[Candidate], tuple[Any, ...]]:
    verdicts = {"fits": 0, "unverified": 0, "tight": 1, "over": 2}  # what nobody measured may be the fastest

    def key(candidate: Candidate) -> tuple[Any, ...]:
        used, parts = candidate.sizes.used, len(candidate.config.optimizations)
        other_method = candidate.config.method != problem.config.method
        if candidate.verdict == "over":
            return (2, other_method, used, parts)
        if goal == "smallest":
            return (0, other_method, used, -candidate.tokens_per_second, parts)
        if goal == "longest":
            return (0, other_method, -lengths[id(candidate)], -candidate.tokens_per_second, parts)
        return (verdicts[candidate.verdict], other_method, -candidate.tokens_per_second, parts)

    return key


def alternative_of(
    problem: Problem, candidate: Candidate, *, best: float = 0.0, longest: int | None = None
) -> Alternative:
    """``best``: tokens/s of the fastest that fits, 0: of this one. ``longest``: the longest row, if that is asked."""
    cluster, used = problem.cluster, candidate.sizes.used
    share = candidate.tokens_per_second / best if best else 1.0
    missing = shortfall(problem, candidate)
    if missing is not None:
        why = why_not(*missing, candidate.peak_instant)
    else:
        why = why_it_fits(used, cluster.gpu.usable_bytes, share, candidate.config, problem.config)
        why = why if longest is None else f"rows of up to {longest} tokens; {why}"
    return Alternative(
        optimizations=candidate.config.optimizations,
        changes=changes_between(problem.registry, problem.config, candidate.config),
        verdict=candidate.verdict,
        used_bytes=used,
        tokens_per_second=candidate.tokens_per_second,
        why=why,
        peak_instant=candidate.peak_instant,
        missing_bytes=0 if missing is None else missing[1],
        share_of_best=share,
        dollars_per_million_tokens=dollars_per_million_tokens(cluster, candidate.tokens_per_second),
    )
