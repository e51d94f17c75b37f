"""Formulas with numbers in place of symbols; letters that are words stay."""

from __future__ import annotations

import re

import pytest

from planner.formula import has_numbers, symbols_of, with_numbers
from tests.planner.plans import LEAN_LORA, plan_of

SYMBOLS = {"T": 10, "d": 4, "f": 6, "N": 2, "q": 4, "kv": 1, "V": 50, "H": 2, "K": 1, "linears": 99}


@pytest.mark.parametrize(
    ("formula", "numbers"),
    [
        ("4d * T: gradients", "4 * 4 * 10: gradients"),
        ("2(d + 3f) * T", "2(4 + 3 * 6) * 10"),
        ("(16 + 4)d * T", "(16 + 4) * 4 * 10"),
        ("2 * N * (d(q + 2kv)) * T: of every group", "2 * 2 * (4 * (4 + 2 * 1)) * 10: of every group"),
        ("2 * linears * T", "2 * 99 * 10"),
        ("T * (2kv + 4H): K and V in flight", "10 * (2 * 1 + 4 * 2): K and V in flight"),
        ("8V * T: logits", "8 * 50 * 10: logits"),
        ("768 MiB: context, modules and kernels", "768 MiB: context, modules and kernels"),
        ("N * r * 3", "2 * r * 3"),
    ],
)
def test_symbols_become_numbers(formula: str, numbers: str) -> None:
    assert with_numbers(formula, SYMBOLS) == numbers


def test_a_text_that_goes_on_with_numbers_has_them() -> None:
    assert has_numbers("4d * T = 4 * 3584 * 8192: the input")
    assert not has_numbers("4d * T: the input")


def test_a_plan_has_no_factor_without_a_number() -> None:
    plan = plan_of({**LEAN_LORA, "liger": {}, "checkpoint_offload": {}})
    symbols = symbols_of(plan)
    assert symbols["r"] == 64
    for term in plan.gpus[0].allocated.terms:
        numbers = with_numbers(term.formula, symbols)
        assert not re.search(r"(?<![\w.])\d*(d|f|T|V|N) \* ", numbers), numbers
