"""How long the planner takes: one plan, one recommendation over the whole space, and `longfit plan` as a process.

    python benchmarks/planner_speed.py OUT.csv        on an idle machine

Columns: what is timed, preset and hardware, number of repetitions, median, 20th and 80th percentile in milliseconds,
configurations priced, and what identifies the machine. Nothing here asserts a time: machines differ, and a loaded one
lies. Goals: 5 ms a plan, 200 ms a recommendation, 400 ms the process.
"""

from __future__ import annotations

import csv
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.services.hardware import parse_cluster
from app.services.planning import ladder_for, plan_resolved, recommend_for
from app.services.presets import load_preset
from app.services.resolve import Resolved, resolve
from core.optimizations import REGISTRY
from planner.space import Problem, candidates

ROOT = Path(__file__).resolve().parents[1]
CASES = (
    ("qwen2.5-7b-8k-1x24g", "A10"),
    ("qwen2.5-7b-16k-2x24g", "2xA10"),
    ("qwen2.5-0.5b-full-16k-1x24g", "RTX-3090"),
    ("llama3.1-8b-64k-1x80g", "8xH100-80G"),
)
REPETITIONS = {"plan": 200, "recommendation": 15, "ladder": 15, "process": 9}


def measure() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for preset, hardware in CASES:
        resolved = resolve(load_preset(preset), cluster=parse_cluster(hardware))
        priced = sum(1 for _ in candidates(_problem(resolved)))
        timed: dict[str, Callable[[], object]] = {
            "plan": lambda r=resolved: plan_resolved(r),  # type: ignore[misc]
            "recommendation": lambda r=resolved: recommend_for(r),  # type: ignore[misc]
            "ladder": lambda r=resolved: ladder_for(r),  # type: ignore[misc]
            "process": lambda p=preset, h=hardware: _process(p, h),  # type: ignore[misc]
        }
        for what, call in timed.items():
            seconds = _seconds(call, REPETITIONS[what])
            rows.append(
                {
                    "what": what, "preset": preset, "hardware": hardware, "repetitions": len(seconds),
                    "median_ms": _ms(seconds, 0.5), "p20_ms": _ms(seconds, 0.2), "p80_ms": _ms(seconds, 0.8),
                    "configurations": priced, **_identity(),
                }
            )  # fmt: skip
            print(f"{what:16} {preset:28} {hardware:12} {rows[-1]['median_ms']:>9.2f} ms", file=sys.stderr)
    return rows


def _problem(resolved: Resolved) -> Problem:
    return Problem(
        config=resolved.config, model=resolved.model, cluster=resolved.cluster, environment=resolved.environment,
        registry=REGISTRY,
    )  # fmt: skip


def _seconds(call: Callable[[], object], repetitions: int) -> list[float]:
    """After one call that imports and fills what is computed once."""
    call()
    found: list[float] = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return sorted(found)


def _process(preset: str, hardware: str) -> None:
    command = [sys.executable, "-P", "-m", "app.cli.main", "plan", preset, "--gpu", hardware]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)


def _ms(ordered: list[float], share: float) -> float:
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


def _identity() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "cpu": _cpu_name(), "cores": os.cpu_count(), "python": platform.python_version(),
        "commit": commit.stdout.strip(), "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def main() -> None:
    rows = measure()
    with Path(sys.argv[1]).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
