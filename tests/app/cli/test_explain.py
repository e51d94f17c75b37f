"""`longfit plan --explain PART`: what can be opened, that it adds up, and what cannot be."""

from __future__ import annotations

import json

import pytest

from app.cli.main import main
from app.services.planning import plan_preset
from app.views.explain_view import explain_text, explained_terms
from planner.errors import ConfigError
from planner.types import INSTANTS

PRESET = "qwen2.5-7b-8k-1x24g"


@pytest.fixture(scope="module")
def plan():
    return plan_preset(PRESET).plan


def test_parts_add_up_to_what_the_peak_holds(plan) -> None:
    by_part = plan.worst_gpu.allocated.by_part()
    for part, size in by_part.items():
        _, terms = explained_terms(plan, part)
        beside = sum(term.bytes for term in plan.worst_gpu.context_terms if term.part == part)
        assert sum(term.bytes for term in terms) == size + beside


def test_instants_add_up_to_what_is_used_there(plan) -> None:
    gpu = plan.worst_gpu
    beside = gpu.used_bytes - gpu.allocated.peak_bytes
    for instant in INSTANTS:
        _, terms = explained_terms(plan, instant)
        assert sum(term.bytes for term in terms) == gpu.allocated.bytes_at(instant) + beside


def test_host_and_disk_can_be_opened(plan) -> None:
    assert sum(term.bytes for term in explained_terms(plan, "host")[1]) == plan.host_bytes
    assert sum(term.bytes for term in explained_terms(plan, "disk")[1]) == plan.disk_bytes


def test_a_part_that_is_not_at_the_peak_is_shown_where_it_is_fullest(plan) -> None:
    title, terms = explained_terms(plan, "logits")
    assert "Nothing at the peak" in title
    assert terms


def test_a_term_opens_by_its_key_and_by_the_beginning_of_it(plan) -> None:
    assert [term.key for term in explained_terms(plan, "weights.base")[1]] == ["weights.base"]
    assert len(explained_terms(plan, "waiting")[1]) > 3


def test_formulas_come_with_their_numbers(plan) -> None:
    text = explain_text(plan, "activations")
    assert "2(d + q) * T" in text
    assert "2(3584 + 3584) * 8192" in text
    assert "together" in text


def test_json_has_the_same(capsys: pytest.CaptureFixture[str], plan) -> None:
    assert main(["plan", PRESET, "--explain", "weights", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["symbols"]["T"] == 8192
    assert [term["bytes"] for term in answer["terms"]] == [2 * 7_615_616_512]


def test_what_is_not_there_is_answered_with_the_nearest(plan) -> None:
    with pytest.raises(ConfigError, match="nothing called 'logit'") as refused:
        explained_terms(plan, "logit")
    assert "logits" in refused.value.fix
