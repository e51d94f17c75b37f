"""Which hardware: the fewest GPUs of a type, and the best type for a goal. Called by app/services/planning.py.

Whether some number of GPUs suffices is not monotone (NCCL costs each GPU memory, and a degree must divide), so numbers
are tried upwards one by one and the first that fits is the answer. An offer is rejected by the least that the method
at hand needs there (planner/ladder.py), which is exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from planner.cost import dollars_per_hour, dollars_per_million_tokens
from planner.errors import ConfigError
from planner.explain import why_not
from planner.goals import Goal
from planner.ladder import way_down
from planner.optimization import Registry
from planner.price import ROOMY, first_refusal, shortfall
from planner.search import alternative_of, best_of
from planner.space import Problem, plainest
from planner.types import Alternative, ClusterSpec, Environment, Instant, ModelSpec, ParallelDegrees, RunConfig

Offer = tuple[ClusterSpec, Environment]
HARDWARE_GOALS: tuple[Goal, ...] = ("fastest", "smallest", "cheapest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """One offer of hardware: its best combination, or why there is none."""

    cluster: ClusterSpec
    best: Alternative | None
    why: str
    needed_bytes: int  # by ``best``, or the least of any combination; 0 where a check refuses them all
    peak_instant: Instant | None
    missing_bytes: int

    @property
    def tokens_per_second(self) -> float:
        return 0.0 if self.best is None else self.best.tokens_per_second

    @property
    def dollars_per_hour(self) -> float | None:
        return dollars_per_hour(self.cluster)

    @property
    def dollars_per_million_tokens(self) -> float | None:
        return None if self.best is None else dollars_per_million_tokens(self.cluster, self.best.tokens_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """``answers`` by the goal, best first; ``rejected`` by what is missing, least first."""

    answers: tuple[Sized, ...]
    rejected: tuple[Sized, ...]
    without_price: tuple[Sized, ...]  # they would fit; left out under the goal cheapest


def fewest_gpus(
    offers: Iterable[Offer], *, config: RunConfig, model: ModelSpec, registry: Registry, goal: str = "fastest"
) -> Sizing:
    """``offers``: more and more GPUs of one type. The first that fits, and those before it."""
    rejected: list[Sized] = []
    for offer in offers:
        sized = _size(offer, config, model, registry, goal)
        if sized.best is not None:
            return Sizing(answers=(sized,), rejected=tuple(rejected), without_price=())
        rejected.append(sized)
        if sized.needed_bytes == 0:  # a check refuses the plain form, on one GPU as on many
            break
    return Sizing(answers=(), rejected=tuple(rejected), without_price=())


def best_hardware(
    types: Iterable[Iterable[Offer]], *, config: RunConfig, model: ModelSpec, registry: Registry, goal: str = "fastest"
) -> Sizing:
    """``types``: for each type of GPU its offers, fewest first. Of each type the fewest that fit are ranked.

    Raises:
        ConfigError: ``goal`` is none that hardware can be ranked by.
    """
    if goal not in HARDWARE_GOALS:
        raise ConfigError(
            f"Hardware cannot be ranked by the goal {goal}.", why=f"Known: {', '.join(HARDWARE_GOALS)}.",
            fix="Name the hardware and ask for the longest length that fits it: longfit fit PRESET --gpu 2xA10.",
        )  # fmt: skip
    answers: list[Sized] = []
    rejected: list[Sized] = []
    without_price: list[Sized] = []
    within = "fastest" if goal == "cheapest" else goal  # on given hardware they are the same, price or not
    for offers in types:
        found = fewest_gpus(offers, config=config, model=model, registry=registry, goal=within)
        rejected += found.rejected[-1:] if not found.answers else ()  # the most GPUs of a type that never suffices
        for sized in found.answers:
            (without_price if goal == "cheapest" and sized.dollars_per_hour is None else answers).append(sized)
    return Sizing(
        answers=tuple(sorted(answers, key=lambda sized: _rank(sized, goal))),
        rejected=tuple(sorted(rejected, key=lambda sized: (sized.needed_bytes == 0, sized.missing_bytes))),
        without_price=tuple(without_price),
    )


def _rank(sized: Sized, goal: str) -> tuple[float, ...]:
    cluster, speed = sized.cluster, sized.tokens_per_second
    if goal == "cheapest":
        return (sized.dollars_per_million_tokens or 0.0, -speed)
    if goal == "smallest":
        return (cluster.num_gpus * cluster.gpu.memory_bytes, cluster.num_gpus, -speed)
    return (-speed, cluster.num_gpus)


def _size(offer: Offer, config: RunConfig, model: ModelSpec, registry: Registry, goal: str) -> Sized:
    cluster, environment = offer
    problem = Problem(
        config=replace(config, parallel=ParallelDegrees(data=cluster.num_gpus)), model=model, cluster=cluster,
        environment=environment, registry=registry,
    )  # fmt: skip
    problem = replace(problem, config=replace(problem.config, optimizations=plainest(problem).optimizations))
    way = way_down(problem)
    if not way:
        return Sized(
            cluster=cluster,
            best=None,
            why=first_refusal(problem, problem.config),
            needed_bytes=0,
            peak_instant=None,
            missing_bytes=0,
        )
    least = way[-1]
    missing = shortfall(problem, least)
    if missing is not None:
        return Sized(
            cluster=cluster, best=None, why=why_not(*missing, least.peak_instant), needed_bytes=least.sizes.used,
            peak_instant=least.peak_instant, missing_bytes=missing[1],
        )  # fmt: skip
    best = best_of(problem, goal=goal, limit=1, only_this_method=True)[0]
    if best.verdict == "over":  # what the search leaves as it is has to change: the optimizer, the loss's chunks
        fitting = [candidate for candidate in way if shortfall(problem, candidate) is None]
        best = alternative_of(problem, max(fitting, key=lambda c: (c.verdict in ROOMY, c.tokens_per_second)))
    return Sized(
        cluster=cluster, best=best, why=best.why, needed_bytes=best.used_bytes, peak_instant=best.peak_instant,
        missing_bytes=0,
    )  # fmt: skip
