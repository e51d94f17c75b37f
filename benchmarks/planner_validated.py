"""Writes planner/validated_rows.py: what the committed rows of benchmarks/results have measured against the planner.

    python benchmarks/planner_validated.py        after a new CSV of plan_against_gpu.py was added

tests/planner/test_validated.py compares the file with what this prints.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from app.services.hardware import parse_cluster
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


def measured_facts() -> list[Facts]:
    """Of every row with a measured peak, without repetitions, in a fixed order."""
    found: set[Facts] = set()
    for path in sorted(RESULTS.glob("*plan-against-measured*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("measured_allocated")]
        for row in rows:
            world = int(row.get("world") or 1)
            values = {"model": row["model"], "max_length": int(row["length"]), "data": {"train": ["random"]}}
            preset = Preset(name=row["row"], description="", values={**values, **json.loads(row["values"])})
            resolved = resolve(preset, cluster=parse_cluster(f"{world}xH200"))
            found.add(facts_of(resolved.config, resolved.model))
    return sorted(found, key=lambda f: (f.family, f.method, sorted(f.features), f.tokens_per_rank, f.world))


def text() -> str:
    lines = []
    for facts in measured_facts():
        names = ", ".join(f'"{name}"' for name in sorted(facts.features))
        features = f"frozenset({{{names}}})" if names else "frozenset()"
        lines.append(
            f'    Facts(family="{facts.family}", method="{facts.method}", tokens_per_rank={facts.tokens_per_rank}, '
            f"world={facts.world},\n          features={features}),\n"
        )
    return f"{HEAD}{''.join(lines)})  # fmt: skip\n"


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
