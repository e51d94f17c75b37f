"""Declarations of optimizations unite in one way, whatever their order."""

from __future__ import annotations

from itertools import permutations

from planner.combine import combine
from planner.effects import Confine, Drop, Effect, Scale, TermSpec, Work
from planner.types import Instant

ALL: frozenset[Instant] = frozenset({"forward_loss", "layer_backward"})
BACKWARD: frozenset[Instant] = frozenset({"layer_backward"})


def term(key: str, size: int = 100) -> TermSpec:
    return TermSpec(key=key, part="activations", instants=ALL, bytes=size, formula=str(size))


def work(key: str, amount: int = 100) -> Work:
    return Work(key=key, kind="gemm", amount=amount, formula=str(amount))


BASE = (term("layer.a"), term("layer.b"), term("other"))
EFFECTS = [
    ("adds", Effect(add=(term("layer.c", 7),))),
    ("drops", Effect(drop=(Drop(key="layer.a", formula="gone"),))),
    ("confines", Effect(confine=(Confine(key="layer.*", instants=BACKWARD, formula="recomputed"),))),
    ("scales", Effect(scale=(Scale(key="layer.c", numerator=1, denominator=2, formula="half"),))),
]


def test_every_order_gives_the_same_terms() -> None:
    results = {combine(BASE, (), order).specs for order in permutations(EFFECTS)}
    assert len(results) == 1
    found = {spec.key: (spec.bytes, spec.instants) for spec in results.pop()}
    assert found == {"layer.b": (100, BACKWARD), "layer.c": (4, BACKWARD), "other": (100, ALL)}


def test_a_drop_also_takes_what_another_optimization_adds() -> None:
    effects = [("adds", Effect(add=(term("layer.c"),))), ("drops", Effect(drop=(Drop(key="layer.*", formula=""),)))]
    assert [spec.key for spec in combine(BASE, (), effects).specs] == ["other"]


def test_a_star_covers_what_lies_below_and_nothing_beside() -> None:
    base = (term("layer"), term("layer.a"), term("layers.a"))
    kept = combine(base, (), [("drops", Effect(drop=(Drop(key="layer.*", formula=""),)))]).specs
    assert {spec.key for spec in kept} == {"layer", "layers.a"}


def test_factors_are_exact_and_rounded_up_once() -> None:
    effect = Effect(scale=(Scale(key="other", numerator=1, denominator=3, formula="third"),))
    (spec,) = [spec for spec in combine(BASE, (), [("scales", effect)]).specs if spec.key == "other"]
    assert spec.bytes == 34
    assert "1/3" in spec.formula


def test_two_claims_on_one_term_are_an_issue_that_names_both() -> None:
    effect = Effect(add=(term("x"),), add_work=(work("w"),))
    halves = Effect(scale=(Scale(key="other", numerator=1, denominator=2, formula="half"),))
    confined = Effect(confine=(Confine(key="other", instants=BACKWARD, formula="late"),))
    for declared in (effect, halves, confined):
        combined = combine(BASE, (), [("first", declared), ("second", declared)])
        assert combined.issues
        for issue in combined.issues:
            assert (issue.code, issue.severity) == ("conflicting-claims", "error")
            assert "first" in issue.what
            assert "second" in issue.what


def test_two_drops_of_one_term_agree() -> None:
    effect = Effect(drop=(Drop(key="other", formula="gone"),))
    assert combine(BASE, (), [("first", effect), ("second", effect)]).issues == ()


def test_work_is_united_in_the_same_way() -> None:
    effects = [
        ("adds", Effect(add_work=(work("gemm.more", 5),))),
        ("drops", Effect(drop_work=(Drop(key="gemm.base", formula="gone"),))),
        ("scales", Effect(scale_work=(Scale(key="gemm.kept", numerator=3, denominator=2, formula="more"),))),
    ]
    for order in permutations(effects):
        found = combine((), (work("gemm.base"), work("gemm.kept")), order).work
        assert {item.key: item.amount for item in found} == {"gemm.kept": 150, "gemm.more": 5}


def test_bytes_by_instant_are_those_of_the_breakdown() -> None:
    combined = combine(BASE, (), EFFECTS)
    assert combined.bytes_by_instant() == combined.breakdown().by_instant()
