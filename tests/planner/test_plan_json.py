"""plan --json: stable, complete, and valid against the published schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import planner
from planner.plan_json import plan_to_dict
from planner.types import INSTANTS, ParallelDegrees
from tests.planner.plans import LEAN_LORA, SMOLLM2, cluster_of, cpu_cluster, plan_of

SCHEMA = json.loads((Path(planner.__file__).parent / "plan.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
CASES: dict[str, dict[str, Any]] = {
    "lean": {"autocast": True, "cluster": cluster_of("A10"), "alternatives": True},
    "full": {"optimizations": {}, "alternatives": True},
    "qlora": {"optimizations": {"qlora": {}, "gradient_checkpointing": {}}},
    "hybrid": {
        "parallel": ParallelDegrees(data=2, ring=2, ulysses=2), "cluster": cluster_of(count=8, disk_free_bytes=10**12),
        "alternatives": True,
    },
    "cpu": {
        "optimizations": {**LEAN_LORA}, "model": SMOLLM2, "cluster": cpu_cluster(2), "dtype": "float32",
        "max_length": 1024, "parallel": ParallelDegrees(ring=2), "alternatives": True,
    },
    "with issues": {"max_length": 100_000, "cluster": cluster_of("T4")},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_plans_are_valid_against_the_schema(case: str) -> None:
    VALIDATOR.validate(json.loads(json.dumps(plan_to_dict(plan_of(**CASES[case])), allow_nan=False)))


def test_the_schema_itself_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$defs"]["instant"]["enum"] == list(INSTANTS)


def test_the_schema_refuses_what_a_plan_never_says() -> None:
    good = plan_to_dict(plan_of())
    for change in ({"verdict": "maybe"}, {"extra": 1}, {"schema": 2}, {"tokens_per_second": 0}):
        assert not VALIDATOR.is_valid({**good, **change})


def test_terms_add_up_to_the_peak() -> None:
    plan = plan_of(**CASES["hybrid"])
    for gpu in plan_to_dict(plan)["gpus"]:
        at_peak = [term for term in gpu["terms"] if plan.peak_instant in term["instants"]]
        assert sum(term["bytes"] for term in at_peak) == gpu["peak"]["allocated_bytes"]
        context = sum(term["bytes"] for term in gpu["context_terms"])
        assert gpu["peak"]["allocated_bytes"] + context == gpu["peak"]["used_bytes"]


def test_the_same_plan_gives_the_same_text() -> None:
    first, second = (json.dumps(plan_to_dict(plan_of(**CASES["lean"]))) for _ in range(2))
    assert first == second
