"""Changes after which a run fits that ran out of memory, most likely the one that a person would make first.

Called by core/run/oom.py for a post-mortem. Every change is priced as a whole plan is, and has room with its band.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.changes import changes_between
from planner.explain import gib
from planner.price import ROOMY, Candidate, price
from planner.search import best_of, largest, longest
from planner.space import Problem, neighbours
from planner.types import Alternative, RunConfig, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    changes: tuple[tuple[str, Any], ...]  # preset keys
    used_bytes: int
    tokens_per_second: float
    why: str


def mend(problem: Problem, *, in_evaluation: bool, limit: int) -> tuple[Mend, ...]:
    """At most ``limit``, the last of them a shorter row where one fits. The method stays, and so do its knobs. Those
    that have room come before those that only fit by their point value; none where nothing does.

    ``in_evaluation``: memory ended there, so that fewer rows in one evaluation come first.
    """
    recommended = best_of(problem, limit=100, only_this_method=True)
    roomy = _mend(_Search(problem=problem, recommended=recommended, verdicts=ROOMY), in_evaluation, limit)
    if len(roomy) == limit:
        return roomy
    known = [way.changes for way in roomy]
    search = _Search(problem=problem, recommended=recommended, verdicts=("tight",))
    tight = [way for way in _mend(search, in_evaluation, limit) if way.changes not in known]
    return (*roomy, *tight[: limit - len(roomy)])


def _mend(search: _Search, in_evaluation: bool, limit: int) -> tuple[Mend, ...]:
    found: list[Mend] = [*(search.smaller_evaluation() if in_evaluation else ()), *search.combinations()]
    if len(found) < limit:
        found += [way for way in search.one_decision() if way.changes not in [known.changes for known in found]]
    smaller = [*search.smaller_batch(), *search.shorter()][: limit - 1]
    return (*found[: limit - len(smaller)], *smaller)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    problem: Problem
    recommended: tuple[Alternative, ...]  # combinations, the best first, whether they fit or not
    verdicts: tuple[Verdict, ...]  # that count as fitting

    def combinations(self) -> Iterator[Mend]:
        """Of the same steps: updates within the backward neither clip nor accumulate, and are one decision of many."""
        for found in self.recommended:
            if found.verdict in self.verdicts and found.changes and "update" not in dict(found.changes):
                yield Mend(
                    changes=found.changes, used_bytes=found.used_bytes, tokens_per_second=found.tokens_per_second,
                    why=found.why,
                )  # fmt: skip

    def one_decision(self) -> list[Mend]:
        """What the search does not try: another optimizer, GaLore, finer tiles. The fastest first."""
        config, registry = self.problem.config, self.problem.registry
        ways = [
            way
            for other in neighbours(self.problem, config, planned=False)
            for way in self._if_it_fits(other, changes_between(registry, config, other), "one decision")
        ]
        return sorted(ways, key=lambda way: -way.tokens_per_second)

    def smaller_evaluation(self) -> list[Mend]:
        config, key = self.problem.config, "per_device_eval_batch_size"
        rows = largest(
            lambda rows: bool(self._if_it_fits(replace(config, per_device_eval_batch_size=rows), (), "")),
            config.per_device_eval_batch_size - 1,
        )
        if rows == 0:
            return []
        smaller = replace(config, per_device_eval_batch_size=rows)
        return self._if_it_fits(smaller, ((key, rows),), "fewer rows in one evaluation: the same loss")

    def smaller_batch(self) -> list[Mend]:
        """Fewer rows at once and as many more micro-batches: the same step."""
        config = self.problem.config
        rows, steps = config.per_device_train_batch_size, config.gradient_accumulation_steps
        for factor in (factor for factor in range(2, rows + 1) if rows % factor == 0):
            rows_at_once, micro_batches = rows // factor, steps * factor
            smaller = replace(
                config, per_device_train_batch_size=rows_at_once, gradient_accumulation_steps=micro_batches
            )
            keys = (
                ("per_device_train_batch_size", rows_at_once), ("gradient_accumulation_steps", micro_batches),
            )  # fmt: skip
            if way := self._if_it_fits(smaller, keys, "fewer rows at once, as many in a step"):
                return way
        return []

    def shorter(self) -> list[Mend]:
        problem, config = self.problem, self.problem.config
        length = longest(problem, config)
        if not 0 < length < config.max_length:
            return []
        candidate = price(problem, replace(config, max_length=length), refuse=False)
        assert candidate is not None  # nothing is refused
        return [self._way(candidate, (("max_length", length),), "the longest that fits with nothing else changed")]

    def _if_it_fits(self, config: RunConfig, changes: tuple[tuple[str, Any], ...], why: str) -> list[Mend]:
        candidate = price(self.problem, config)
        if candidate is None or candidate.verdict not in self.verdicts:
            return []
        return [self._way(candidate, changes, why)]

    def _way(self, candidate: Candidate, changes: tuple[tuple[str, Any], ...], why: str) -> Mend:
        spare = self.problem.cluster.gpu.usable_bytes - candidate.sizes.used
        return Mend(
            changes=changes, used_bytes=candidate.sizes.used, tokens_per_second=candidate.tokens_per_second,
            why=f"{gib(spare)} to spare; {why}",
        )  # fmt: skip
