"""The step-by-step table: from the plain method to the least that this hardware needs, one decision a rung.

Each rung takes the decision that lowers used bytes most. First those that can be run, down to the real minimum; then
those that are planned only. Called by app/services/planning.py for `longfit plan --ladder`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.changes import changes_between
from planner.price import Candidate, price
from planner.space import Problem, by_other_methods, neighbours, plainest
from planner.types import Instant, Part, RunConfig, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    config: RunConfig
    changes: tuple[tuple[str, Any], ...]  # preset keys against the rung above; () for the first
    runnable: bool  # False: an entry of it is planned only
    verdict: Verdict
    peak_instant: Instant
    used_bytes: int
    by_part: Mapping[Part, int]  # at the peak, context and allocator under runtime; adds up to used_bytes
    weights_formula: str
    host_bytes: int
    tokens_per_second: float

    @property
    def weights_bytes(self) -> int:
        return self.by_part.get("weights", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """``rungs``: runnable ones first. ``by_other_methods``: the lowest runnable rung of each method below."""

    usable_bytes: int
    rungs: tuple[Rung, ...]
    by_other_methods: tuple[Rung, ...]

    @property
    def minimum(self) -> Rung:
        """The least that can be run today by the method at hand."""
        return next(rung for rung in reversed(self.rungs) if rung.runnable)

    @property
    def first_that_fits(self) -> Rung | None:
        return next((rung for rung in self.rungs if rung.runnable and rung.verdict != "over"), None)

    @property
    def ways_below(self) -> tuple[Rung, ...]:
        """What needs less than the minimum: other methods, then the end of what is planned only."""
        least = self.minimum.used_bytes
        return tuple(rung for rung in (*self.by_other_methods, *self.rungs[-1:]) if rung.used_bytes < least)


def climb(problem: Problem) -> Ladder:
    """
    Raises:
        ConfigError: a knob of the config at hand is out of range.
    """
    start = price(problem, plainest(problem), refuse=False)
    assert start is not None  # nothing is refused
    runnable = _way_down(problem, start)
    engines = ("module",) if problem.config.engine == "module" else ("module", "layer")
    planned = _descend(problem, runnable[-1], planned=True, engines=engines)
    others = (price(problem, config) for config in by_other_methods(problem, start.config))
    return Ladder(
        usable_bytes=problem.cluster.gpu.usable_bytes,
        rungs=tuple(_rungs(problem, [*runnable, *planned])),
        by_other_methods=tuple(
            _rung(problem, _way_down(problem, other)[-1], ()) for other in others if other is not None
        ),
    )


def way_down(problem: Problem) -> list[Candidate]:
    """From the plain form of the method at hand to the least that can be run by it; empty when a check refuses it."""
    start = price(problem, plainest(problem))
    return [] if start is None else _way_down(problem, start)


def _way_down(problem: Problem, start: Candidate) -> list[Candidate]:
    """By the engines that the config at hand may use: the layer engine spreads no row, so that the modules alone may
    end lower."""
    by_modules = [start, *_descend(problem, start, planned=False, engines=("module",))]
    if problem.config.engine == "module":
        return by_modules
    by_either = [start, *_descend(problem, start, planned=False)]
    return min((by_either, by_modules), key=lambda way: way[-1].sizes.used)


def _descend(
    problem: Problem, start: Candidate, *, planned: bool, engines: tuple[str, ...] = ("module", "layer")
) -> Iterator[Candidate]:  # fmt: skip
    """Each time the neighbour that uses least; of several the fastest. Ends where none uses less."""
    at = start
    while True:
        near = (config for config in neighbours(problem, at.config, planned=planned) if config.engine in engines)
        lower = _lower(problem, at, near)
        lower = lower or _lower(problem, at, _two_away(problem, at.config, planned=planned))
        if not lower:
            return
        at = min(lower, key=lambda candidate: (candidate.sizes.used, -candidate.tokens_per_second))
        yield at


def _lower(problem: Problem, at: Candidate, configs: Iterator[RunConfig]) -> list[Candidate]:
    """Those that use less on the GPU. Host memory is a wall too, unless the rung above is beyond it already."""
    wall = max(problem.cluster.host_bytes_per_node, at.host_bytes)
    priced = (candidate for config in configs if (candidate := price(problem, config)) is not None)
    return [candidate for candidate in priced if candidate.sizes.used < at.sizes.used and candidate.host_bytes <= wall]


def _two_away(problem: Problem, config: RunConfig, *, planned: bool) -> Iterator[RunConfig]:
    """Another optimizer and one decision more: optimizers exclude each other, and GaLore most of them."""
    for other in neighbours(problem, config, planned=planned):
        if other.optim != config.optim:
            yield from neighbours(problem, other, planned=planned)


def _rungs(problem: Problem, candidates: list[Candidate]) -> Iterator[Rung]:
    before: RunConfig | None = None
    for candidate in candidates:
        changes = () if before is None else changes_between(problem.registry, before, candidate.config)
        yield _rung(problem, candidate, changes)
        before = candidate.config


def _rung(problem: Problem, candidate: Candidate, changes: tuple[tuple[str, Any], ...]) -> Rung:
    instant, sizes = candidate.peak_instant, candidate.sizes
    alive = [spec for spec in candidate.result.combined.specs if instant in spec.instants]
    parts: dict[Part, int] = {}
    sized = ((item.part, item.bytes) for items in (alive, sizes.context_terms) for item in items)
    for part, size in sized:
        parts[part] = parts.get(part, 0) + size
    weights = (spec.formula for spec in alive if spec.part == "weights")
    return Rung(
        config=candidate.config, changes=changes,
        runnable=problem.is_runnable(candidate.config), verdict=candidate.verdict, peak_instant=instant,
        used_bytes=sizes.used, by_part=parts, weights_formula="; ".join(weights), host_bytes=candidate.host_bytes,
        tokens_per_second=candidate.tokens_per_second,
    )  # fmt: skip
