"""A run directory written by hand, as a supervisor would leave it, for tests of faces that follow one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from core.run.config_file import write_config
from core.run.jsonl import encode_line
from tests.app.plans import GIB, run_config

T0 = 1_800_000_000.0


def plan_dict(*, world: int = 2) -> dict[str, Any]:
    """plan.json, as far as a face reads it."""
    instants = {"load": 6, "forward_loss": 6.3, "loss_backward": 10, "layer_backward": 8, "optimizer_step": 7}
    gpu = {
        "usable_bytes": 22 * GIB,
        "peak": {"allocated_bytes": 10 * GIB, "used_bytes": 11 * GIB},
        "allocated_bytes_by_instant": {instant: round(gib * GIB) for instant, gib in instants.items()},
    }
    environment = {"source": "detected", "packages": {}, "compute_capability": "8.6"}
    return {
        "schema": 1,
        "tokens_per_second": 2000.0,
        "environment": environment,
        "gpus": [{**gpu, "index": rank} for rank in range(world)],
    }


def make_run(root: Path, *, steps: int = 40, total_steps: int = 100, status: str = "running") -> Path:
    """``status``: running, done, or failed (with a post-mortem)."""
    run = root / "20261129-120000-qwen2.5-7b-8k-a3f1"
    run.mkdir(parents=True)
    (run / "control").mkdir()
    write_config(run, run_config(world=2))
    (run / "plan.json").write_text(json.dumps(plan_dict()))
    (run / "command.sh").write_text("#!/bin/sh\n")
    write_events(run, steps=steps, total_steps=total_steps, status=status)
    append_steps(run, 1, steps)
    append(run / "memory.jsonl", *memory_rows(steps))
    return run


def append(path: Path, *rows: dict[str, Any]) -> None:
    with path.open("ab") as file:
        file.writelines(encode_line(row) for row in rows)


def write_events(run: Path, *, steps: int, total_steps: int, status: str) -> None:
    process = {"start_ticks": 1, "boot_id": "b"}
    events = [
        ("created", {}),
        ("supervisor", {"pid": 100, "attempt": 1, **process}),
        ("phase", {"name": "load"}),
        ("worker", {"rank": 0, "pid": 101, **process}),
        ("worker", {"rank": 1, "pid": 102, **process}),
        ("evidence", {"optimization": "ring", "claim": "2 ranks exchange keys and values in 28 layers"}),
        ("fallback", {"optimization": "flash_attention", "reason": "flash_attn is not installed"}),
        ("running", {"total_steps": total_steps, "world": 2}),
        ("evaluation", {"step": 0, "loss": 2.9, "num_targets": 500}),
        ("checkpoint", {"step": 20, "path": "checkpoints/step-20"}),
        ("progress", {"step": steps}),
    ]
    if status == "failed":
        message = "CUDA out of memory. Tried to allocate 9.27 GiB [bold]while[/bold] forming the logits."
        events.append(("failure", {"kind": "oom", "message": message, "rank": 1, "step": steps}))
        events.append(("finished", {"status": "failed", "kind": "oom", "message": message}))
        postmortem = {
            "schema": 1, "kind": "oom", "message": message, "rank": 1, "step": steps,
            "peaks": [{"rank": 1, "instant": "backward", "measured_bytes": 19 * GIB, "planned_bytes": 10 * GIB,
                       "over_bytes": 9 * GIB}],
            "exits": [{"rank": 1, "pid": 102, "code": 1, "signal": None}],
            "traceback": "Traceback (most recent call last):\n  File \"worker.py\", line 1\nOutOfMemoryError",
            "log_tail": [],
        }  # fmt: skip
        (run / "postmortem.json").write_text(json.dumps(postmortem))
    elif status == "done":
        events.append(("finished", {"status": "done", "kind": "", "message": ""}))
    rows = [{"time": T0 + i, "type": name, "data": data} for i, (name, data) in enumerate(events)]
    append(run / "events.jsonl", *rows)


def append_steps(run: Path, first: int, last: int) -> None:
    """Metrics of some steps, with an evaluation every ten, and the log lines beside them."""
    rows: list[dict[str, Any]] = []
    lines = []
    for step in range(first, last + 1):
        loss = 1.2 + 1.7 * math.exp(-step / 15) + 0.1 * math.sin(3.1 * step)
        rows.append(
            {"step": step, "time": T0 + step, "loss": loss, "learning_rate": 1e-4, "grad_norm": 0.8,
             "num_targets": 700, "tokens": 8192, "tokens_per_second": 1900.0, "seconds": 4.3, "epoch": step / 50}
        )  # fmt: skip
        lines.append(f"12:00:{step % 60:02d} step {step} loss {loss:.4f} [red]not markup[/red] {'x' * 30}")
        if step % 10 == 0:
            rows.append({"step": step, "time": T0 + step, "eval_loss": loss + 0.05})
    append(run / "metrics.jsonl", *rows)
    with (run / "train.log").open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def memory_rows(step: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for rank, factor in ((0, 0.985), (1, 1.01)):
        for instant, gib in (("load", 6), ("forward", 6.2), ("backward", 10), ("step", 7)):
            size = round(gib * factor * GIB)
            rows.append(
                {"time": T0, "step": step, "rank": rank, "instant": instant, "allocated_bytes": size,
                 "reserved_bytes": size, "used_bytes": size + GIB, "peak_bytes": 11 * GIB, "baseline_bytes": GIB}
            )  # fmt: skip
    gpus = [
        {"index": i, "used_bytes": 11 * GIB, "total_bytes": 22 * GIB, "utilization": 97 - 2 * i, "temperature": 72 - i,
         "power_watts": 148.0 + i}
        for i in range(2)
    ]  # fmt: skip
    rows.append(
        {"time": T0, "source": "supervisor", "host_available_bytes": 61 * GIB, "host_total_bytes": 128 * GIB,
         "disk_free_bytes": 212 * GIB, "ranks": [], "gpus": gpus}
    )  # fmt: skip
    return rows
