"""The range in which plans were checked: it is what the committed rows say, and outside of it nothing fits for sure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.planner_validated import TARGET, text
from planner.types import ParallelDegrees, Plan
from planner.validated import Facts, facts_of, features_of, range_of
from planner.validated_rows import VALIDATED
from tests.planner.plans import LEAN_LORA, QWEN_7B, catalog_model, cluster_of, codes, cpu_cluster, plan_of, run_config

RANGE = range_of(VALIDATED)
SMALL = catalog_model("Qwen/Qwen2.5-0.5B-Instruct")


def test_the_table_is_what_the_committed_results_say() -> None:
    assert TARGET.read_text("utf-8") == text(), "run: python benchmarks/planner_validated.py"


def test_what_was_measured_lies_within() -> None:
    assert all(RANGE.outside(facts) == () for facts in VALIDATED)
    assert plan_of(LEAN_LORA).verdict == "fits"


def never(plan: Plan) -> str:
    return next(issue.what for issue in plan.issues if issue.code == "never-measured")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (plan_of({"galore": {}, "fused_loss": {}, "gradient_checkpointing": {}}, optim="adamw_torch"), "galore"),
        (plan_of({**LEAN_LORA, "lora": {"dropout": 0.1}}), "lora.dropout"),
        (plan_of(model=catalog_model("mistralai/Mistral-7B-v0.3")), "family mistral"),
        (
            plan_of(max_length=262144, rope_scaling=(("factor", 8.0), ("type", "yarn")), model=SMALL),
            "262144 tokens a GPU",
        ),
        (plan_of(parallel=ParallelDegrees(ulysses=2), cluster=cluster_of(count=2)), "2 GPUs"),
    ],
    ids=["optimization", "knob", "family", "length", "world"],
)
def test_outside_a_plan_is_unverified_and_says_what_was_never_measured(plan: Plan, words: str) -> None:
    assert plan.verdict == "unverified"
    assert words in never(plan)


def test_what_does_not_fit_stays_so() -> None:
    plan = plan_of({"lora": {}, "liger": {}}, cluster=cluster_of("A10"), max_length=32768)
    assert plan.verdict == "over"


def test_packing_and_the_attention_kernel_move_no_byte() -> None:
    config = run_config({**LEAN_LORA, "flash_attention": {}})
    assert features_of(config) == {"gradient_checkpointing", "fused_loss"}


def test_cpu_processes_are_not_judged_by_rows_of_gpus() -> None:
    plan = plan_of(
        {"lora": {}, "gradient_checkpointing": {}, "fused_loss": {}}, cluster=cpu_cluster(2), dtype="float32",
        model=catalog_model("HuggingFaceTB/SmolLM2-135M"), max_length=256, parallel=ParallelDegrees(ring=2),
    )  # fmt: skip
    assert plan.verdict == "fits"
    assert "never-measured" not in codes(plan)


def test_each_fact_is_looked_up_by_itself() -> None:
    facts = facts_of(run_config(LEAN_LORA), QWEN_7B)
    rows = [
        replace(facts, features=frozenset({"fused_loss"})),
        replace(facts, features=frozenset({"gradient_checkpointing"})),
    ]
    assert range_of(rows).outside(facts) == ()
    assert range_of(()).outside(Facts(family="x", method="full", features=frozenset(), tokens_per_rank=1, world=1))
