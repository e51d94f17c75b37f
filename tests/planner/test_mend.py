"""Ways out of a run that does not fit: planned again, each of them does, and the step stays what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.optimizations import REGISTRY
from planner.catalog.gpus import GPUS
from planner.mend import Mend, mend
from planner.search import best_of
from planner.space import Problem
from tests.planner.plans import LEAN_LORA, QWEN_7B, catalog_model, cluster_of, environment_of, plan_of, run_config

GIB = 1024**3
QWEN_05B = catalog_model("Qwen/Qwen2.5-0.5B-Instruct")
LEAN: dict[str, Any] = {"gradient_checkpointing": {}, "fused_loss": {}}


def ways_out(model: Any, usable: float, *, in_evaluation: bool = False, limit: int = 3, **values: Any) -> list[Mend]:
    config = run_config(**values)
    cluster = cluster_of(replace(GPUS["H200"], usable_bytes=int(usable * GIB)))
    problem = Problem(
        config=config, model=model, cluster=cluster, environment=environment_of(cluster), registry=REGISTRY
    )  # fmt: skip
    return list(mend(problem, in_evaluation=in_evaluation, limit=limit))


def test_fewer_rows_of_an_evaluation_come_first_where_memory_ended_there() -> None:
    values = {"optimizations": LEAN_LORA, "max_length": 16384, "per_device_eval_batch_size": 16}
    first, *others = ways_out(QWEN_7B, 40, in_evaluation=True, **values)
    [(key, rows)] = first.changes
    assert key == "per_device_eval_batch_size"
    assert 1 <= rows < 16
    assert first.used_bytes < 40 * GIB
    assert first.used_bytes == plan_of(model=QWEN_7B, **{**values, key: rows}).worst_gpu.used_bytes
    assert all(dict(way.changes).get(key) is None for way in others)


def test_fewer_rows_at_once_are_as_many_in_a_step() -> None:
    values = {"optimizations": LEAN_LORA, "max_length": 8192, "per_device_train_batch_size": 8}
    ways = ways_out(QWEN_7B, 30, **values)
    changes = [dict(way.changes) for way in ways]
    smaller = next(change for change in changes if "per_device_train_batch_size" in change)
    assert smaller["per_device_train_batch_size"] * smaller["gradient_accumulation_steps"] == 8
    assert plan_of(model=QWEN_7B, **{**values, **smaller}).worst_gpu.used_bytes < 30 * GIB


def test_the_shorter_row_is_the_last_and_fits() -> None:
    values = {"optimizations": LEAN_LORA, "max_length": 65536}
    ways = ways_out(QWEN_7B, 30, **values)
    assert len(ways) == 3
    [(key, length)] = ways[-1].changes
    assert key == "max_length"
    assert ways[-1].used_bytes == plan_of(model=QWEN_7B, **{**values, key: length}).worst_gpu.used_bytes <= 30 * GIB


def test_where_no_combination_fits_another_optimizer_is_found() -> None:
    values = {"optimizations": LEAN, "max_length": 512}
    needed = plan_of(model=QWEN_05B, **values).worst_gpu.used_bytes / GIB
    ways = ways_out(QWEN_05B, needed - 0.8, **values)
    assert [way.changes for way in ways] == [
        (("optim", "adamw_8bit"),), (("optim", "paged_adamw_8bit"),), (("galore", 128),)
    ]  # fmt: skip
    assert all(way.used_bytes < (needed - 0.8) * GIB for way in ways)


def test_what_has_room_comes_before_what_only_fits() -> None:
    values = {"optimizations": LEAN, "max_length": 512}
    needed = plan_of(model=QWEN_05B, **values).worst_gpu.used_bytes / GIB
    for usable in (needed - 0.4, needed - 0.9):
        ways = ways_out(QWEN_05B, usable, **values)
        cluster = cluster_of(replace(GPUS["H200"], usable_bytes=int(usable * GIB)))
        chosen = [
            {"optim": v} if k == "optim" else {"optimizations": {**LEAN, k: {}}} for w in ways for k, v in w.changes
        ]
        verdicts = [plan_of(model=QWEN_05B, cluster=cluster, **{**values, **keys}).verdict for keys in chosen]
        assert "over" not in verdicts
        assert verdicts == sorted(verdicts, key=lambda verdict: verdict == "tight"), usable


def test_combinations_are_searched_once_also_where_nothing_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, Any] = {"optimizations": LEAN_LORA, "max_length": 32768, "per_device_train_batch_size": 2}
    expected = ways_out(QWEN_05B, 3, **values)
    searches: list[Any] = []

    def counted(problem: Problem, **asked: Any) -> Any:
        searches.append(asked)
        return best_of(problem, **asked)

    monkeypatch.setattr("planner.mend.best_of", counted)
    assert ways_out(QWEN_05B, 3, **values) == expected
    assert [way.changes for way in expected] == [(("max_length", 256),)]
    assert len(searches) == 1


@pytest.mark.parametrize("usable", [3, 6, 12])
def test_each_way_fits_when_it_is_planned_again(usable: float) -> None:
    values: dict[str, Any] = {"optimizations": LEAN_LORA, "max_length": 32768, "per_device_train_batch_size": 2}
    for way in ways_out(QWEN_05B, usable, limit=6, **values):
        assert way.used_bytes <= usable * GIB, way
        assert way.tokens_per_second > 0
