"""The Plan tab's fragments: the table equals the bar, words come from the views, nothing typed becomes markup."""

from __future__ import annotations

import re
from dataclasses import replace

from app.gui import plan_html
from app.views.footprint import footprint_of
from app.views.plan_view import alternative_rows, verdict_view
from planner.types import Issue
from tests.app import plans

HOSTILE = '<img src=x onerror="alert(1)">'


def test_the_verdict_is_a_word_in_a_status() -> None:
    for tokens, word in ((4096, "FITS"), (8192, "TIGHT"), (16384, "OVER")):
        plan = plans.plan(tokens=tokens)
        html = plan_html.verdict_html(plan)
        assert 'role="status"' in html
        assert f">{word}<" in html
        assert verdict_view(plan).sentence in html


def test_the_table_equals_the_bar() -> None:
    plan = plans.plan()
    pattern = r'data-part="(\w+)" data-bytes="(\d+)"'
    table = re.findall(pattern, plan_html.parts_html(plan))
    assert table == re.findall(pattern, plan_html.bar_html(plan))
    assert sum(int(size) for _, size in table) == plan.worst_gpu.used_bytes


def test_every_part_opens_to_its_terms_with_formula_basis_and_source() -> None:
    plan = plans.plan()
    html = plan_html.parts_html(plan)
    for segment in footprint_of(plan.worst_gpu).segments:
        for term in segment.terms:
            assert term.formula in html
            assert f"({term.basis})" in html
    assert "config.json" in html


def test_equal_gpus_are_said_to_be_equal() -> None:
    assert "All 4 hold the same" in plan_html.bar_html(plans.plan(world=4))
    assert "hold the same" not in plan_html.bar_html(plans.plan())


def test_facts_say_length_hardware_and_readings() -> None:
    html = plan_html.facts_html(plans.plan())
    for words in ("8,192 tokens", "native 32,768", "1 x A10 (assumed)", "allocated", "reserved", "(peak)"):
        assert words in html


def test_issues_carry_their_severity_as_a_word() -> None:
    assert "<strong>Warning:</strong> Your longest row is 412 tokens;" in plan_html.issues_html(plans.plan())


def test_recommendations_name_combination_verdict_and_change() -> None:
    row = alternative_rows(plans.plan())[0]
    html = plan_html.alternative_html(row)
    for words in ("fused loss", ">FITS<", "18.0 GiB", "1.25x", "fused_loss: true", row.why):
        assert words in html


def test_names_and_messages_are_escaped() -> None:
    plan = plans.plan()
    issue = Issue(code="x", severity="error", what=HOSTILE, why=HOSTILE, fix=HOSTILE)
    hostile = replace(
        plan,
        issues=(issue,),
        model=replace(plan.model, name=HOSTILE),
        cluster=replace(plan.cluster, gpu=replace(plan.cluster.gpu, name=HOSTILE)),
    )
    for fragment in (plan_html.facts_html(hostile), plan_html.issues_html(hostile), plan_html.refusal_html(HOSTILE)):
        assert HOSTILE not in fragment
        assert "&lt;img" in fragment
