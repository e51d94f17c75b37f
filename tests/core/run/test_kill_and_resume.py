"""The promise that matters most, with the real trainer: SIGKILL for the whole tree in mid-run, then resume, and the
curve is bit for bit that of an uninterrupted run. One process, and two under torchrun (ring 2)."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from app.services import control
from app.services.launch import resume, start_supervisor
from app.services.runs import observed_state
from core.run.directory import RunDirectory
from core.run.jsonl import read_rows
from core.run.process import send_signal
from planner.types import ParallelDegrees
from tests.core.run.run_cases import assert_all_gone, events_of, family_of, wait_for_step
from tests.core.train.runs import LORA, make_run, setting
from tests.core.train.tiny_llama import save_tiny_llama

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 60
TIMING = ("time", "seconds", "tokens_per_second")
DROPOUT = setting("lora", **dict(LORA.knobs) | {"dropout": 0.2})
WORLDS = {
    "one process": (ParallelDegrees(), ()),
    "ring of two": (ParallelDegrees(ring=2), (setting("ring", degree=2),)),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model"))


def real_run(root: Path, model: Path, name: str, world: str) -> RunDirectory:
    """Quick steps with a checkpoint on every seventh and an evaluation on every tenth."""
    parallel, optimizations = WORLDS[world]
    run = make_run(
        root, model, DROPOUT, *optimizations, name=name, max_steps=STEPS, save_steps=7, eval_steps=10,
        eval_lengths=(20, 9), parallel=parallel,
    )  # fmt: skip
    run.control.mkdir()
    run.environment.write_text(json.dumps({"device": "cpu"}))
    return run


def curve(run: RunDirectory) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in TIMING} for row in read_rows(run.metrics)]


def finish(run: RunDirectory) -> None:
    state = control.wait_for_end(run, timeout_seconds=240)
    assert state.status == "done", (state, run.log.read_text()[-3000:])


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_killed_as_a_whole_resumes_to_the_same_curve(tmp_path, model, world):
    whole = real_run(tmp_path, model, "whole", world)
    start_supervisor(whole)
    finish(whole)
    expected = curve(whole)
    assert [row["step"] for row in expected if "loss" in row] == list(range(1, STEPS + 1))

    killed = real_run(tmp_path, model, "killed", world)
    start_supervisor(killed)
    wait_for_step(killed, 16)
    family = family_of(observed_state(killed).supervisor.pid)
    for process in family:
        send_signal(process, signal.SIGKILL)
    assert_all_gone(family)
    assert observed_state(killed).status == "lost"
    before = curve(killed)
    resume(killed)
    finish(killed)

    assert curve(killed) == expected
    (resumed,) = events_of(killed, "resumed")
    assert resumed.data["exact"] is True
    assert resumed.data["step"] % 7 == 0
    assert resumed.data["step"] >= 14
    aside = [row for row in before if row["step"] > resumed.data["step"]]
    assert [row["step"] for row in read_rows(killed.superseded_metrics)] == [row["step"] for row in aside]
    last = sorted((whole.checkpoints / f"step-{STEPS}").glob("*.safetensors"))
    assert last
    for file in last:
        assert (killed.checkpoints / f"step-{STEPS}" / file.name).read_bytes() == file.read_bytes(), file.name
