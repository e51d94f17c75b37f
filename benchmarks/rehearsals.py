"""`longfit rehearse` of the rows of engines.py: planned against measured at each moment, on one GPU.

    python benchmarks/rehearsals.py OUT.csv [--engine module] [--steps 3] [LENGTH ...]

A row for each moment of each length, and one for its peak. Calibrations go to this machine's folder, as a user's do.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import traceback
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

COLUMNS = (
    "engine", "length", "moment", "planned_allocated", "measured_allocated", "allocated_error_percent", "planned_used",
    "measured_used", "used_error_percent", "planned_tokens_per_second", "measured_tokens_per_second", "steps", "values",
    "evidence", "fallbacks", "problem", "gpu", "torch", "commit", "date",
)  # fmt: skip


def rows_of(engine: str, length: int, steps: int) -> list[dict[str, Any]]:
    from app.services.planning import plan_resolved
    from app.services.rehearse import rehearse_preset
    from benchmarks.engines import MODEL, rope_of, values_of
    from planner.measured import MEASURED_INSTANTS
    from planner.types import Preset

    values = {**values_of(engine, length), **rope_of(length), "engine": engine.partition("-")[0]}
    given = {"model": MODEL, "max_length": length, "data": {"train": ["none"]}, **values}
    known = {"engine": engine, "length": length, "steps": steps, "values": json.dumps(values, sort_keys=True)}
    rehearsal = rehearse_preset(Preset(name="rehearsal", description="", values=given), steps=steps)
    if rehearsal.failure is not None:
        return [{**known, "problem": rehearsal.failure["message"]}]
    plan = plan_resolved(rehearsal.planned.resolved, calibrated=False)
    gpu = plan.worst_gpu
    rows = []
    for moment, measured in rehearsal.measured.items():
        planned = max(gpu.allocated.bytes_at(instant) for instant in MEASURED_INSTANTS[moment])
        rows.append({**known, "moment": moment, "planned_allocated": planned,
                     "measured_allocated": measured.allocated_bytes, "measured_used": measured.used_bytes,
                     "allocated_error_percent": _percent(planned, measured.allocated_bytes)})  # fmt: skip
    peak, used = rehearsal.measured_allocated, rehearsal.measured_used
    rows.append({
        **known, "moment": "peak", "planned_allocated": gpu.allocated.peak_bytes, "measured_allocated": peak,
        "allocated_error_percent": _percent(gpu.allocated.peak_bytes, peak), "planned_used": gpu.used_bytes,
        "measured_used": used, "used_error_percent": _percent(gpu.used_bytes, used),
        "planned_tokens_per_second": round(plan.tokens_per_second, 1),
        "measured_tokens_per_second": round(rehearsal.tokens_per_second or 0.0, 1),
        "evidence": " | ".join(rehearsal.evidence), "fallbacks": " | ".join(rehearsal.fallbacks),
    })  # fmt: skip
    return rows


def _percent(planned: float, measured: float) -> float:
    return round(100 * (planned / measured - 1), 2)


def main(out: str, engine: str, lengths: list[int], steps: int) -> int:
    import pynvml

    pynvml.nvmlInit()
    facts = {
        "gpu": pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)), "torch": version("torch"),
        "commit": os.environ.get("LONGFIT_COMMIT", ""), "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    for length in lengths:
        try:
            found = rows_of(engine, length, steps)
        except Exception as error:
            traceback.print_exc()
            found = [{"engine": engine, "length": length, "problem": f"{type(error).__name__}: {error}"[-600:]}]
        rows += [{**row, **facts} for row in found]
        print({key: found[-1].get(key) for key in COLUMNS}, flush=True)
        with Path(out).open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    return 0 if all("problem" not in row for row in rows) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    parser = argparse.ArgumentParser(description="rehearsals of the rows of engines.py")
    parser.add_argument("out")
    parser.add_argument("lengths", nargs="*", type=int, default=[8192, 32768, 65536, 131072])
    parser.add_argument("--engine", default="module")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    sys.exit(main(args.out, args.engine, args.lengths, args.steps))
