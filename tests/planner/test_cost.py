"""Dollars of an hour, of tokens and of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.views.plan_view import cost_words
from planner.cost import dollars_of_run, dollars_per_hour, dollars_per_million_tokens
from planner.types import ParallelDegrees
from tests.planner.plans import GPUS, LEAN_LORA, cluster_of, plan_of


def test_an_hour_of_all_gpus_buys_an_hour_of_tokens() -> None:
    plan = plan_of(parallel=ParallelDegrees(data=2), cluster=cluster_of("L40S", 2), max_steps=100)
    hourly = dollars_per_hour(plan.cluster)
    assert hourly == 2 * GPUS["L40S"].dollars_per_hour
    tokens = dollars_per_million_tokens(plan.cluster, plan.tokens_per_second)
    assert tokens == pytest.approx(hourly / (3600 * plan.tokens_per_second / 1e6))
    run = dollars_of_run(plan)
    assert run == pytest.approx(tokens * 100 * plan.batch["tokens_per_step"] / 1e6)
    assert "the run of 100 steps" in cost_words(plan)


def test_a_run_whose_steps_follow_from_the_data_has_no_price_yet() -> None:
    plan = plan_of(LEAN_LORA, cluster=cluster_of("L40S"))
    assert dollars_of_run(plan) is None
    assert cost_words(plan).endswith("per million tokens")


def test_without_a_price_nothing_is_said() -> None:
    plan = plan_of(LEAN_LORA, cluster=cluster_of("A10"))
    assert cost_words(plan) == ""
    assert dollars_per_million_tokens(replace(plan.cluster), 1.0) is None
