"""How long the Run screen takes to open a run of three days, and what scrolling costs.

    python benchmarks/tui_long_run.py

Writes a run directory as a supervisor leaves it (500,000 metric rows, an event a second, 50 MB of log; about 200 MB in
all), opens it in a terminal of its own (Pilot, 120x40), and measures from building the app to the first whole picture:
state, curve, memory and end of the log. Then it scrolls through the log and counts the bytes that were read for it.
tests/app/tui/test_long_run.py calls the same functions on a smaller run and asserts the counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.services.planning import plan_preset
from app.services.presets import preset_text
from app.tui.app import LongfitApp
from app.tui.screens.run import RunScreen
from app.tui.widgets.log_view import LogView
from core.run.config_file import write_config
from core.run.jsonl import encode_line
from core.run.process import identify
from planner.plan_json import plan_to_dict

T0 = 1_800_000_000.0
DAYS = 3.0
GIB = 1024**3
_LOG_LINE = "2027-01-15 08:00:{:02d} INFO core.train.trainer: step {:d}/{:d}  loss {:.4f}  lr 0.0001  grad norm 0.8\n"


def write_long_run(folder: Path, *, num_rows: int, log_bytes: int, is_live: bool = True) -> Path:
    """A run under ``folder`` whose attempt has taken ``num_rows`` steps, a metric row each. Returns its directory."""
    run = folder / "20270115-080000-long-0001"
    (run / "control").mkdir(parents=True)
    planned = plan_preset("qwen2.5-7b-8k-1x24g", {"logging_steps": 1})
    write_config(run, planned.resolved.config)
    (run / "plan.json").write_text(json.dumps(plan_to_dict(planned.plan)))
    (run / "preset.yaml").write_text(preset_text(planned.preset))
    (run / "command.sh").write_text("#!/bin/sh\n")
    seconds = DAYS * 86400 / num_rows
    total = num_rows + 1000
    _write_events(run / "events.jsonl", num_rows, total, seconds, is_live=is_live)
    with (run / "metrics.jsonl").open("w") as file:
        file.writelines(_metric_lines(num_rows, seconds))
    planned_bytes = planned.plan.worst_gpu.allocated.peak_bytes
    with (run / "memory.jsonl").open("wb") as rows:
        rows.writelines(_memory_lines(num_rows, seconds, planned_bytes))
    padding = "x" * max(0, log_bytes // num_rows - len(_LOG_LINE.format(0, num_rows, total, 1.0)) - 1)
    with (run / "train.log").open("w") as log:
        log.writelines(
            _LOG_LINE.format(step % 60, step, total, _loss(step, num_rows))[:-1] + f" {padding}\n"
            for step in range(1, num_rows + 1)
        )
    return run


def _write_events(path: Path, num_rows: int, total: int, seconds: float, *, is_live: bool) -> None:
    process = identify(os.getpid())  # this process stands in for the supervisor, so that the run is not lost
    assert process is not None
    identity = {"pid": process.pid, "start_ticks": process.start_ticks, "boot_id": process.boot_id}
    head: list[tuple[str, dict[str, Any]]] = [
        ("created", {}),
        ("supervisor", {"attempt": 1, **identity}),
        ("worker", {"rank": 0, **identity}),
        ("running", {"total_steps": total, "world": 1}),
    ]
    with path.open("wb") as file:
        for name, data in head:
            file.write(encode_line({"time": T0, "type": name, "data": data}))
        per_event = max(1, round(1 / seconds))
        for step in range(per_event, num_rows + 1, per_event):
            file.write(b'{"time":%.1f,"type":"progress","data":{"rank":0,"step":%d}}\n' % (T0 + step * seconds, step))
        file.write(
            encode_line({"time": T0 + num_rows * seconds, "type": "progress", "data": {"rank": 0, "step": num_rows}})
        )
        folded = file.tell()
        if not is_live:
            file.write(encode_line({"time": T0, "type": "finished", "data": {"status": "stopped"}}))
    _write_state(path.with_name("state.json"), path, folded)


def _write_state(path: Path, events: Path, folded: int) -> None:
    from core.run.directory import RunDirectory
    from core.run.journal import read_state
    from planner.run_state import state_to_dict

    state = read_state(RunDirectory(events.parent))
    path.write_text(json.dumps({"schema": 1, "events_bytes": folded, "state": state_to_dict(state)}))


def _loss(step: int, num_rows: int) -> float:
    return 1.2 + 1.7 * math.exp(-8 * step / num_rows) + 0.1 * math.sin(0.37 * step)


def _metric_lines(num_rows: int, seconds: float) -> Iterator[str]:
    for step in range(1, num_rows + 1):
        yield (
            f'{{"step":{step},"time":{T0 + step * seconds:.3f},"loss":{_loss(step, num_rows):.6f},'
            f'"learning_rate":0.0001,"grad_norm":0.81,"num_targets":700,"tokens":8192,"tokens_per_second":'
            f'{8192 / seconds:.2f},"seconds":{seconds:.4f},"epoch":{step / num_rows:.6f}}}\n'
        )
        if step % 1000 == 0:
            yield f'{{"step":{step},"time":{T0 + step * seconds:.3f},"eval_loss":{_loss(step, num_rows) + 0.05:.6f}}}\n'


def _memory_lines(num_rows: int, seconds: float, planned_bytes: int) -> Iterator[bytes]:
    """Four instants and a sample of the supervisor every ten seconds, as core/run/inbox.py thins them."""
    for step in range(1, num_rows + 1, max(1, round(10 / seconds))):
        at = T0 + step * seconds
        for instant, share in (("forward", 0.8), ("backward", 1.0), ("step", 0.75)):
            size = round(share * planned_bytes)
            yield encode_line(
                {"time": at, "step": step, "rank": 0, "instant": instant, "allocated_bytes": size,
                 "reserved_bytes": size, "used_bytes": size + GIB, "peak_bytes": planned_bytes, "baseline_bytes": GIB}
            )  # fmt: skip
        gpu = {"index": 0, "used_bytes": 20 * GIB, "total_bytes": 24 * GIB, "utilization": 97, "temperature": 72}
        yield encode_line(
            {"time": at, "source": "supervisor", "host_available_bytes": 61 * GIB, "host_total_bytes": 128 * GIB,
             "disk_free_bytes": 200 * GIB, "ranks": [], "gpus": [gpu]}
        )  # fmt: skip


def bytes_read() -> int:
    """What this process has read through system calls so far, from /proc/self/io (Linux)."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


async def measure(run: Path) -> dict[str, float]:
    """Seconds to the first whole picture and to the full curve, seconds and bytes of a page of scrolling."""
    start, cpu_start = time.perf_counter(), time.process_time()
    app = LongfitApp(run_dir=run)
    async with app.run_test(size=(120, 40)) as pilot:
        while not is_whole(app):
            await asyncio.sleep(0.01)  # pilot.pause waits until nothing goes on, but the curve is being completed
        opened, opened_cpu = time.perf_counter() - start, time.process_time() - cpu_start
        feed = app.screen.feed  # type: ignore[attr-defined]
        while feed.is_sampled:
            await pilot.pause(0.05)
        complete = time.perf_counter() - start
        await pilot.pause(0.6)
        log = app.screen.query_one(LogView)
        pages = []
        before = bytes_read()
        for key in ["home", *["pagedown"] * 20, "end", *["pageup"] * 20]:
            at = time.perf_counter()
            await pilot.press(key)
            pages.append(time.perf_counter() - at)
        scrolled = bytes_read() - before
        assert len(log.log_file or ()) > 0
    return {
        "open_s": opened, "open_cpu_s": opened_cpu, "full_curve_s": complete, "page_median_s": statistics.median(pages),
        "page_max_s": max(pages),
        "scroll_bytes": scrolled, "rows": feed.loss.num_rows,
    }  # fmt: skip


def is_whole(app: LongfitApp) -> bool:
    """The Run screen has drawn state, curve and memory, and painted the end of the log."""
    screen = app.screen
    if not isinstance(screen, RunScreen) or not screen.is_drawn:
        return False
    log = screen.query_one(LogView)
    has_painted_end = bool(log._view) and log._view[-1][0] == len(log.log_file or ()) - 1
    return bool(screen.feed.loss.last and screen.feed.memory.ranks and has_painted_end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--log-mb", type=float, default=50.0)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="longfit-long-run-") as folder:
        run = write_long_run(Path(folder), num_rows=args.rows, log_bytes=round(args.log_mb * 1e6))
        size = sum(path.stat().st_size for path in run.iterdir() if path.is_file())
        print(f"{args.rows:,} rows, {size / 1e6:.0f} MB")
        for _ in range(args.repeats):
            result = asyncio.run(measure(run))
            print("  ".join(f"{name} {value:,.3f}" for name, value in result.items()))


if __name__ == "__main__":
    main()
