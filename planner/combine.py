"""One order-free way to unite the plain path's terms with the declarations of the enabled optimizations.

Additions first, then drops, then confinements, then factors. Called by planner/account.py for plans and for the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from planner.effects import Confine, Drop, Effect, Scale, TermSpec, Work
from planner.types import INSTANTS, Instant, Issue, MemoryBreakdown, Part, Term

PARTS: tuple[Part, ...] = (
    "weights", "adapters", "gradients", "optimizer", "checkpoints", "activations", "logits", "communication", "runtime"
)  # fmt: skip
PART_ORDER: dict[Part, int] = {part: index for index, part in enumerate(PARTS)}

Claim = TypeVar("Claim", Confine, Scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    specs: tuple[TermSpec, ...]  # the plain path's first, then by the name of the optimization; none empty
    work: tuple[Work, ...]
    issues: tuple[Issue, ...]

    def bytes_by_instant(self) -> dict[Instant, int]:
        totals: dict[Instant, int] = dict.fromkeys(INSTANTS, 0)
        for spec in self.specs:
            for instant in spec.instants:
                totals[instant] += spec.bytes
        return totals

    def breakdown(self) -> MemoryBreakdown:
        """Terms by part, then by key."""
        specs = sorted(self.specs, key=lambda spec: (PART_ORDER[spec.part], spec.key))
        return MemoryBreakdown(
            terms=tuple(
                Term(
                    key=spec.key, part=spec.part, instants=spec.instants, bytes=spec.bytes, formula=spec.formula,
                    basis=spec.basis, source=spec.source,
                )
                for spec in specs
            )
        )  # fmt: skip


def combine(base: Sequence[TermSpec], base_work: Sequence[Work], effects: Sequence[tuple[str, Effect]]) -> Combined:
    """``effects``: (name of the optimization, its effect), in any order: the result is the same.

    Two optimizations that add the same key, confine the same term or scale the same term are an Issue of severity
    error; their declarations are then applied in the order of the names, so that the plan still prints.
    """
    effects = sorted(effects, key=lambda pair: pair[0])
    issues: list[Issue] = []

    specs = _unite(base, [(name, effect.add) for name, effect in effects], issues)
    kept = _kept(specs, [drop for _, effect in effects for drop in effect.drop])
    confines = _Claims([(name, confine) for name, effect in effects for confine in effect.confine])
    scales = _Claims([(name, scale) for name, effect in effects for scale in effect.scale])
    confined = [_confined(spec, confines, issues) if confines.touch(spec.key) else spec for spec in kept]
    result = [_scaled(spec, scales, issues) if scales.touch(spec.key) else spec for spec in confined]

    work = _unite(base_work, [(name, effect.add_work) for name, effect in effects], issues)
    kept_work = _kept(work, [drop for _, effect in effects for drop in effect.drop_work])
    work_scales = _Claims([(name, scale) for name, effect in effects for scale in effect.scale_work])
    return Combined(
        specs=tuple(spec for spec in result if spec.bytes and spec.instants),
        work=tuple(_scaled(item, work_scales, issues) if work_scales.touch(item.key) else item for item in kept_work),
        issues=tuple(issues),
    )


Keyed = TypeVar("Keyed", TermSpec, Work)


def _unite(base: Sequence[Keyed], added: Iterable[tuple[str, Sequence[Keyed]]], issues: list[Issue]) -> list[Keyed]:
    owner = {item.key: "the plain path" for item in base}
    united = list(base)
    for name, items in added:
        for item in items:
            if item.key in owner:
                issues.append(_conflict(item.key, "added by", owner[item.key], name))
                continue
            owner[item.key] = name
            united.append(item)
    return united


def _kept(items: Sequence[Keyed], drops: Sequence[Drop]) -> list[Keyed]:
    exact = {drop.key for drop in drops if not drop.key.endswith(".*")}
    below = tuple(drop.key[:-1] for drop in drops if drop.key.endswith(".*"))
    return [item for item in items if item.key not in exact and not item.key.startswith(below)]


class _Claims(Generic[Claim]):
    """Claims by the term that they are on: the search asks for each term of each candidate."""

    def __init__(self, claims: Sequence[tuple[str, Claim]]) -> None:
        self._claims: list[tuple[str, Claim]] = sorted(claims, key=lambda pair: pair[0])
        self._exact = frozenset(claim.key for _, claim in claims if not claim.key.endswith(".*"))
        self._below = tuple(claim.key[:-1] for _, claim in claims if claim.key.endswith(".*"))

    def touch(self, key: str) -> bool:
        return key in self._exact or key.startswith(self._below)

    def on(self, key: str, verb: str, issues: list[Issue]) -> list[Claim]:
        """Of a key that they touch."""
        found = [
            (name, claim)
            for name, claim in self._claims
            if claim.key == key or (claim.key.endswith(".*") and key.startswith(claim.key[:-1]))
        ]
        if len(found) > 1:
            issues.append(_conflict(key, verb, found[0][0], found[1][0]))
        return [claim for _, claim in found]


def _confined(spec: TermSpec, confines: _Claims[Confine], issues: list[Issue]) -> TermSpec:
    for claim in confines.on(spec.key, "confined by", issues):
        spec = TermSpec(
            key=spec.key, part=spec.part, instants=spec.instants & claim.instants, bytes=spec.bytes,
            formula=f"{spec.formula}; {claim.formula}", basis=spec.basis, source=spec.source,
        )  # fmt: skip
    return spec


def _scaled(item: Keyed, scales: _Claims[Scale], issues: list[Issue]) -> Keyed:
    claims = scales.on(item.key, "scaled by", issues)
    numerator, denominator, texts = 1, 1, [item.formula]
    for scale in claims:
        numerator, denominator = numerator * scale.numerator, denominator * scale.denominator
        texts.append(f"x {scale.numerator}/{scale.denominator}: {scale.formula}")
    formula = "; ".join(texts)
    if isinstance(item, TermSpec):  # built anew, not replaced: the search scales thousands of them
        return TermSpec(
            key=item.key, part=item.part, instants=item.instants, bytes=-(-item.bytes * numerator // denominator),
            formula=formula, basis=item.basis, source=item.source,
        )  # fmt: skip
    return Work(
        key=item.key, kind=item.kind, amount=-(-item.amount * numerator // denominator), formula=formula,
        overlapped=item.overlapped, window=item.window,
    )  # fmt: skip


def _conflict(key: str, verb: str, first: str, second: str) -> Issue:
    return Issue(
        code="conflicting-claims", severity="error", what=f"The term {key} is {verb} both {first} and {second}.",
        why="Two declarations on one term cannot both hold.", fix=f"Switch {second} off.",
        suggestion=((second, None),),
    )  # fmt: skip
