"""Writes planner/validated_rows.py: what the committed rows of benchmarks/results have measured against the planner.

    python benchmarks/planner_validated.py        after a new CSV of a GPU was added

tests/planner/test_validated.py compares the file with what this prints.
"""

from __future__ import annotations

import ast
import csv
import json
from pathlib import Path
from typing import Any

from app.services.hardware import parse_cluster
from app.services.presets import load_preset
from app.services.resolve import resolve
from planner.types import Preset
from planner.validated import Facts, facts_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TARGET = ROOT / "planner" / "validated_rows.py"
HEAD = '''"""Runs that were measured against the planner. Written by benchmarks/planner_validated.py; do not edit."""

from __future__ import annotations

from planner.validated import Facts

VALIDATED: tuple[Facts, ...] = (
'''


QWEN, FAKE_PARALLEL_LENGTH = "Qwen/Qwen2.5-7B-Instruct", 12288  # of engines.py and fake_parallel.py


def measured_facts() -> list[Facts]:
    """Of every row with a measured peak, without repetitions, in a fixed order."""
    found = {
        *(
            _facts(row["model"], int(row["length"]), "module", json.loads(row["values"]), int(row.get("world") or 1))
            for row in _rows("*plan-against-measured*.csv", "measured_allocated")
        ),
        *(
            _facts(QWEN, int(row["length"]), row["engine"].partition("-")[0], json.loads(row["values"]))
            for row in _rows("*-engines.csv", "planned_allocated")
        ),
        *(
            _facts(QWEN, FAKE_PARALLEL_LENGTH, row["engine"], ast.literal_eval(row["values"]))
            for row in _rows("*-fake-parallel.csv", "planned_allocated")
        ),
        *(_rehearsed(row) for row in _rows("*-rehearsals.csv", "planned_used")),  # the row of the peak
    }
    return sorted(found, key=lambda f: (f.family, f.method, sorted(f.features), f.tokens_per_rank, f.world))


def _rehearsed(row: dict[str, str]) -> Facts:
    """``engine`` holds an engine of engines.py, or the name of a preset."""
    values = json.loads(row["values"])
    if row["engine"] in ("module", "layer"):
        return _facts(QWEN, int(row["length"]), row["engine"], values)
    return _facts(load_preset(row["engine"]).values["model"], int(row["length"]), values.get("engine", "auto"), values)


def _rows(pattern: str, needed: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for path in sorted(RESULTS.glob(pattern)):
        with path.open(encoding="utf-8", newline="") as file:
            rows += [row for row in csv.DictReader(file) if row.get(needed)]
    return rows


def _facts(model: str, length: int, engine: str, values: dict[str, Any], world: int = 1) -> Facts:
    run = {"model": model, "max_length": length, "data": {"train": ["random"]}, "engine": engine}
    rope = {"rope_scaling": {"type": "yarn", "factor": length / 32768}} if model == QWEN and length > 32768 else {}
    preset = Preset(name="measured", description="", values={**run, **rope, **values})
    resolved = resolve(preset, cluster=parse_cluster(f"{world}xH200"))
    return facts_of(resolved.config, resolved.model)


def text() -> str:
    lines = []
    for facts in measured_facts():
        names = [f'"{name}"' for name in sorted(facts.features)]
        rows = [", ".join(names[start : start + 2]) for start in range(0, len(names), 2)]
        features = f"frozenset({{{(',' + chr(10) + ' ' * 30).join(rows)}}})" if names else "frozenset()"
        lines.append(
            f'    Facts(family="{facts.family}", method="{facts.method}", tokens_per_rank={facts.tokens_per_rank}, '
            f"world={facts.world},\n          features={features}),\n"
        )
    return f"{HEAD}{''.join(lines)})  # fmt: skip\n"


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
