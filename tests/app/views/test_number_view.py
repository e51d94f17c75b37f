"""Every number of a plan opens: verdict by its rule, use down to its terms, speed and batch as quotients."""

import pytest

from app.views.format import format_bytes, format_share
from app.views.number_view import number_rows, number_text
from app.views.parts import VERDICT_MEANING
from planner.errors import ConfigError
from planner.plan import FITS_SHARE
from tests.app import plans


def test_every_row_opens_to_a_text_with_its_number():
    plan = plans.plan()
    rows = number_rows(plan)
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert number_text(plan, row.name).strip(), row.name
    gpu = plan.worst_gpu
    names = {row.name for row in rows}
    assert {term.key for term in (*gpu.allocated.terms, *gpu.context_terms)} <= names
    assert {"verdict", "used", "speed", "batch", "host", "disk", gpu.allocated.peak_instant} <= names


def test_use_is_allocated_plus_what_lies_beside_it():
    plan = plans.plan()
    gpu = plan.worst_gpu
    assert gpu.used_bytes == gpu.allocated.peak_bytes + sum(term.bytes for term in gpu.context_terms)
    text = number_text(plan, "used")
    for size in (gpu.used_bytes, gpu.allocated.peak_bytes, *(term.bytes for term in gpu.context_terms)):
        assert format_bytes(size) in text
    assert "4*V*T with T = 8192" in text


def test_the_verdict_shows_its_rule_with_the_numbers():
    plan = plans.plan()
    text = number_text(plan, "verdict")
    assert text.startswith("TIGHT")
    assert f"{plan.worst_gpu.usable_bytes:,} bytes" in text
    assert f"92 % of what is usable is {format_bytes(round(0.92 * plan.worst_gpu.usable_bytes))}." in text
    for word, meaning in (("FITS", "below 92 %"), ("OVER", "more than"), ("UNVERIFIED", "no run has measured")):
        assert any(line.startswith(word) and meaning in line for line in text.splitlines()), word


def test_speed_is_a_quotient_of_what_is_shown():
    plan = plans.plan()
    assert "65,536 tokens a step / 32.00 s" in number_text(plan, "speed")
    assert plan.batch["tokens_per_step"] / plan.seconds_per_step == plan.tokens_per_second


def test_a_name_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="nothing called"):
        number_text(plans.plan(), "logit")


def test_the_share_that_the_words_name_is_the_planners():
    assert format_share(FITS_SHARE) in VERDICT_MEANING["fits"]
