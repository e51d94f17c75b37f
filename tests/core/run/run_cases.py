"""Run directories, supervisors and waiting for facts, shared by the tests of core/run and app/services."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from core.run.command import worker_command
from core.run.directory import RunDirectory, create_run
from core.run.interpreter import child_environment, python_argv
from core.run.journal import decode_events, read_state
from core.run.jsonl import read_rows
from core.run.process import descendants, identify, is_alive
from planner.types import DataConfig, OptimizationSetting, ParallelDegrees, ProcessId, RunConfig, RunEvent

STAND_IN = (str(Path(__file__).with_name("stand_in_worker.py")),)
PLAN: dict[str, Any] = {
    "schema": 1,
    "peak_instant": "layer_backward",
    "environment": {"source": "detected", "packages": {}, "compute_capability": None},
    "gpus": [
        {
            "index": 0,
            "usable_bytes": 10_000,
            "peak": {"allocated_bytes": 700, "reserved_bytes": 800, "used_bytes": 900},
            "terms": [],
        }
    ],
}


def make_config(*, world: int = 1, model: str = "org/tiny") -> RunConfig:
    return RunConfig(
        name="Tiny run", model=model, dtype="float32", autocast=False, max_length=64,
        data=DataConfig(train=("rows.jsonl",)), parallel=ParallelDegrees(data=world),
        optimizations=(OptimizationSetting(name="lora", knobs=(("rank", 8), ("targets", "all-linear"))),),
    )  # fmt: skip


def make_run(root: Path, *, world: int = 1, **ways: Any) -> RunDirectory:
    """A run whose stand-in worker behaves as ``ways`` say."""
    config = make_config(world=world)
    return create_run(
        root, config=config, preset_text="model: org/tiny\n", plan=PLAN, data=ways, environment={"device": "cpu"},
        command=lambda path: worker_command(config, path, device="cpu", base=os.environ, target=STAND_IN),
    )  # fmt: skip


def supervise(run: RunDirectory) -> subprocess.Popen[bytes]:
    with run.supervisor_log.open("ab") as log:
        return subprocess.Popen(
            python_argv("-m", "core.run.supervisor", str(run.path), "--", *STAND_IN),
            env=child_environment(os.environ), cwd=run.path, start_new_session=True, stdout=log, stderr=log,
        )  # fmt: skip


def wait_for(fact: Callable[[], Any], *, seconds: float = 60.0, what: str = "") -> Any:
    """The first truthy value of ``fact``; fails with its last value after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := fact()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or fact} was {value!r}"
        time.sleep(0.02)
    return value


def wait_for_step(run: RunDirectory, step: int) -> None:
    wait_for(lambda: read_state(run).step >= step, what=f"step {step} of {run.path}")


def events_of(run: RunDirectory, *types: str) -> list[RunEvent]:
    return [event for event in decode_events(read_rows(run.events)) if not types or event.type in types]


def family_of(supervisor_pid: int) -> list[ProcessId]:
    own = identify(supervisor_pid)
    assert own is not None
    return [own, *descendants(supervisor_pid)]


def assert_all_gone(processes: Iterable[ProcessId], *, seconds: float = 5.0) -> None:
    """The promise of the run: nobody is left after five seconds."""
    wait_for(lambda: not [p for p in processes if is_alive(p)], seconds=seconds, what="processes left")


def run_to_end(run: RunDirectory) -> int:
    process = supervise(run)
    try:
        return process.wait(60)
    finally:
        process.kill()
