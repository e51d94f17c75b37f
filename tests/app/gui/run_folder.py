"""A run directory as a supervisor would have left it, without one: for tests of the Run tab."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from core.run.command import WorkerCommand
from core.run.directory import RunDirectory, create_run
from core.run.journal import Journal
from core.run.process import boot_id, identify
from tests.app import plans

START = 1_796_000_000.0
MIB = 1024**2
GONE = 2**30  # above any pid that Linux gives out


def make_run(runs_root: Path, *, num_steps: int = 40, total_steps: int = 100, world: int = 2) -> RunDirectory:
    """Created, loaded, and ``num_steps`` steps in. Nobody attends to it: readers call it lost until it has ended."""
    planned = 900 * MIB
    plan = {
        "schema": 1, "verdict": "fits", "tokens_per_second": 2000.0, "peak_instant": "loss_backward",
        "gpus": [
            {"index": rank, "usable_bytes": 4096 * MIB, "terms": [],
             "peak": {"allocated_bytes": planned, "used_bytes": planned + 300 * MIB}}
            for rank in range(world)
        ],
    }  # fmt: skip
    run = create_run(
        runs_root, config=plans.run_config(world=world), preset_text="name: x\n", plan=plan, data={"train": None},
        environment={}, now=START,
        command=lambda path: WorkerCommand(argv=("true",), environment={}, directory=path, has_launcher=False),
    )  # fmt: skip
    journal = Journal(run, clock=lambda: START)
    journal.event("supervisor", pid=GONE, start_ticks=1, boot_id=boot_id(), attempt=1)
    for rank in range(world):
        journal.event("worker", rank=rank, pid=GONE + 1 + rank, start_ticks=1, boot_id=boot_id())
    journal.event("phase", name="load")
    journal.event("running", total_steps=total_steps, world=world)
    journal.metric({"step": 0, "time": START, "eval_loss": 2.6})
    for step in range(1, num_steps + 1):
        journal.event("progress", step=step)
        journal.metric(metric_row(step))
        for rank in range(world):
            for instant, share in (("forward", 0.8), ("backward", 0.99), ("step", 0.6)):
                journal.memory(memory_row(step, rank, instant, round(share * planned) + rank * MIB))
    journal.metric({"step": num_steps, "time": START + num_steps, "eval_loss": 1.4})
    journal.event("evaluation", step=num_steps, loss=1.4, num_targets=1000)
    journal.close()
    run.log.write_text("".join(f"line {step}\n" for step in range(num_steps)), encoding="utf-8")
    return run


def metric_row(step: int) -> dict[str, Any]:
    return {
        "step": step, "time": START + step, "loss": 1.2 + 1.4 / step + 0.05 * (-1) ** step, "learning_rate": 1e-4,
        "grad_norm": 0.8, "num_targets": 900, "tokens": 2048, "tokens_per_second": 1900.0, "seconds": 1.1, "epoch": 0.1,
    }  # fmt: skip


def memory_row(step: int, rank: int, instant: str, allocated: int) -> dict[str, Any]:
    return {
        "time": START + step, "step": step, "rank": rank, "instant": instant, "allocated_bytes": allocated,
        "reserved_bytes": allocated, "used_bytes": allocated + 300 * MIB, "peak_bytes": allocated + 300 * MIB,
        "baseline_bytes": 300 * MIB,
    }  # fmt: skip


def end_run(run: RunDirectory, status: str, **data: Any) -> None:
    """Append the last event of the attempt."""
    journal = Journal(run, clock=lambda: START + 200)
    journal.event("finished", status=status, **data)
    journal.close()


def attend(run: RunDirectory) -> None:
    """Let this very process stand for the supervisor, so that the run is live."""
    own = identify(os.getpid())
    assert own is not None
    journal = Journal(run, clock=lambda: START + 100)
    journal.event("supervisor", pid=own.pid, start_ticks=own.start_ticks, boot_id=own.boot_id, attempt=2)
    journal.event("running", total_steps=100, world=2)
    journal.close()
