"""One order-free way to unite the plain path's terms with the declarations of the enabled optimizations.

Additions first, then drops, then confinements, then factors. Called by planner/account.py for plans and for the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from planner.effects import Confine, Drop, Effect, Scale, TermSpec, Work
from planner.types import INSTANTS, Instant, Issue, MemoryBreakdown, Part, Term

PARTS: tuple[Part, ...] = (
    "weights", "adapters", "gradients", "optimizer", "checkpoints", "activations", "logits", "communication", "runtime"
)  # fmt: skip
PART_ORDER: dict[Part, int] = {part: index for index, part in enumerate(PARTS)}

Claim = TypeVar("Claim", Drop, Confine, Scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    specs: tuple[TermSpec, ...]  # in a canonical order, none empty
    work: tuple[Work, ...]
    issues: tuple[Issue, ...]

    def bytes_by_instant(self) -> dict[Instant, int]:
        totals: dict[Instant, int] = dict.fromkeys(INSTANTS, 0)
        for spec in self.specs:
            for instant in spec.instants:
                totals[instant] += spec.bytes
        return totals

    def breakdown(self) -> MemoryBreakdown:
        return MemoryBreakdown(
            terms=tuple(
                Term(
                    key=spec.key, part=spec.part, instants=spec.instants, bytes=spec.bytes, formula=spec.formula,
                    basis=spec.basis, source=spec.source,
                )
                for spec in self.specs
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
    drops = [drop for _, effect in effects for drop in effect.drop]
    kept = [spec for spec in specs if not any(_matches(drop.key, spec.key) for drop in drops)]

    confines = [(name, confine) for name, effect in effects for confine in effect.confine]
    scales = [(name, scale) for name, effect in effects for scale in effect.scale]
    result = [_scaled(_confined(spec, confines, issues), scales, issues) for spec in kept]

    work = _unite(base_work, [(name, effect.add_work) for name, effect in effects], issues)
    work_drops = [drop for _, effect in effects for drop in effect.drop_work]
    kept_work = [item for item in work if not any(_matches(drop.key, item.key) for drop in work_drops)]
    work_scales = [(name, scale) for name, effect in effects for scale in effect.scale_work]
    return Combined(
        specs=tuple(
            sorted(
                (spec for spec in result if spec.bytes and spec.instants),
                key=lambda spec: (PART_ORDER[spec.part], spec.key),
            )
        ),
        work=tuple(sorted((_scaled(item, work_scales, issues) for item in kept_work), key=lambda item: item.key)),
        issues=tuple(issues),
    )


Keyed = TypeVar("Keyed", TermSpec, Work)


def _matches(pattern: str, key: str) -> bool:
    return key.startswith(pattern[:-1]) if pattern.endswith(".*") else key == pattern


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


def _confined(spec: TermSpec, confines: Sequence[tuple[str, Confine]], issues: list[Issue]) -> TermSpec:
    for claim in _claims(spec.key, confines, "confined by", issues):
        spec = replace(spec, instants=spec.instants & claim.instants, formula=f"{spec.formula}; {claim.formula}")
    return spec


def _scaled(item: Keyed, scales: Sequence[tuple[str, Scale]], issues: list[Issue]) -> Keyed:
    found: list[Scale] = _claims(item.key, scales, "scaled by", issues)
    if not found:
        return item
    numerator, denominator = 1, 1
    for scale in found:
        numerator, denominator = numerator * scale.numerator, denominator * scale.denominator
    text = "; ".join([item.formula, *(f"x {scale.numerator}/{scale.denominator}: {scale.formula}" for scale in found)])
    if isinstance(item, TermSpec):
        return replace(item, bytes=-(-item.bytes * numerator // denominator), formula=text)
    return replace(item, amount=-(-item.amount * numerator // denominator), formula=text)


def _claims(key: str, claims: Sequence[tuple[str, Claim]], verb: str, issues: list[Issue]) -> list[Claim]:
    found = [(name, claim) for name, claim in claims if _matches(claim.key, key)]
    if len(found) > 1:
        issues.append(_conflict(key, verb, *(name for name, _ in found[:2])))
    return [claim for _, claim in found]


def _conflict(key: str, verb: str, first: str, second: str) -> Issue:
    return Issue(
        code="conflicting-claims", severity="error", what=f"The term {key} is {verb} both {first} and {second}.",
        why="Two declarations on one term cannot both hold.", fix=f"Switch {second} off.",
        suggestion=((second, None),),
    )  # fmt: skip
