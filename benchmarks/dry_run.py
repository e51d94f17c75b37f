"""The planner's closed form against dry runs of the installed transformers and peft: fourteen models of nine families.

    python benchmarks/dry_run.py OUT.csv [MODEL|PRESET ...]        as `longfit verify`, every figure kept

One row for each instant of each configuration, and one for its peak; what OUT.csv has already is neither run again nor
changed. Needs no GPU and no weights; about three seconds of one core a configuration.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from app.services.verify import Verified, cases_of, installed, verify


def rows_of(verified: Verified, facts: dict[str, str]) -> list[dict[str, Any]]:
    config, model = verified.case.resolved.config, verified.case.resolved.model
    named = [(difference.instant, difference) for difference in verified.differences]
    return [
        {
            "family": model.family, "model": model.name, "config": verified.case.label, "max_length": config.max_length,
            "instant": name, "planned_bytes": difference.planned_bytes, "dry_run_bytes": difference.dry_run_bytes,
            "error": round(difference.error, 6), "config_hash": config.hash(), **facts,
        }
        for name, difference in (*named, ("peak", verified.peak))
    ]  # fmt: skip


def main(out: str, *names: str) -> int:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    facts = {**installed(), "commit": commit, "date": datetime.now(UTC).strftime("%Y-%m-%d")}
    recorded: set[str] = set()
    if Path(out).exists():
        with Path(out).open(newline="") as file:
            recorded = {row["config_hash"] for row in csv.DictReader(file)}
    rows: list[dict[str, Any]] = []
    errors: list[float] = []
    for verified in verify(tuple(case for case in cases_of(names) if case.resolved.config.hash() not in recorded)):
        rows += rows_of(verified, facts)
        errors.append(abs(verified.peak.error))
        print(f"{verified.case.resolved.model.name:40} {verified.case.label:60} {verified.peak.error:+.3%}", flush=True)
    if not errors:
        print(f"{out} has all of them")
        return 0
    with Path(out).open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        if not recorded:
            writer.writeheader()
        writer.writerows(rows)
    print(f"{len(errors)} configurations: peak {sum(errors) / len(errors):.3%} in the mean, {max(errors):.3%} at worst")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
