"""`longfit rehearse` of the rows of engines.py, or of presets: planned against measured at each moment, on one GPU.

    python benchmarks/rehearsals.py OUT.csv [--engine module] [--steps 3] [--as GPU] [LENGTH | PRESET ...]

A row for each moment of each of them, and one for its peak. Calibrations go to this machine's folder, as a user's do.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import traceback
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.types import Preset

COLUMNS = (
    "engine", "length", "moment", "planned_allocated", "measured_allocated", "allocated_error_percent", "planned_used",
    "measured_used", "used_error_percent", "planned_tokens_per_second", "measured_tokens_per_second", "steps", "values",
    "as_gpu", "evidence", "fallbacks", "problem", "gpu", "torch", "commit", "date",
)  # fmt: skip


def preset_of(what: str, engine: str) -> Preset:
    """A row of engines.py by its length, or a preset by its name, for the hardware at hand."""
    from app.services.presets import load_preset
    from benchmarks.engines import MODEL, rope_of, values_of
    from planner.types import Preset

    if not what.isdigit():
        return replace(load_preset(what), hardware={})
    values = {**values_of(engine, int(what)), **rope_of(int(what)), "engine": engine.partition("-")[0]}
    given = {"model": MODEL, "max_length": int(what), "data": {"train": ["none"]}, **values}
    return Preset(name="rehearsal", description="", values=given)


def rows_of(what: str, engine: str, steps: int, as_gpu: str | None) -> list[dict[str, Any]]:
    from app.services.planning import plan_resolved
    from app.services.rehearse import limit_of_gpu, rehearse_preset
    from planner.measured import MEASURED_INSTANTS

    preset = preset_of(what, engine)
    values = {key: value for key, value in preset.values.items() if key not in ("model", "max_length", "data")}
    name = engine if what.isdigit() else what
    limit = None if as_gpu is None else limit_of_gpu(as_gpu)
    known = {
        "engine": name, "length": preset.values["max_length"], "steps": steps, "as_gpu": as_gpu,
        "values": json.dumps(values, sort_keys=True, default=str),
    }  # fmt: skip
    rehearsal = rehearse_preset(preset, steps=steps, limit_bytes=limit)
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


def main(out: str, engine: str, asked: list[str], steps: int, as_gpu: str | None) -> int:
    import pynvml

    pynvml.nvmlInit()
    facts = {
        "gpu": pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)), "torch": version("torch"),
        "commit": os.environ.get("LONGFIT_COMMIT", ""), "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    for what in asked:
        try:
            found = rows_of(what, engine, steps, as_gpu)
        except Exception as error:
            traceback.print_exc()
            found = [{"engine": engine, "length": what, "problem": f"{type(error).__name__}: {error}"[-600:]}]
        rows += [{**row, **facts} for row in found]
        print({key: found[-1].get(key) for key in COLUMNS}, flush=True)
        with Path(out).open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    return 0 if all("problem" not in row for row in rows) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    parser = argparse.ArgumentParser(description="rehearsals of the rows of engines.py, or of presets")
    parser.add_argument("out")
    parser.add_argument("asked", nargs="*", metavar="LENGTH|PRESET", default=["8192", "32768", "65536", "131072"])
    parser.add_argument("--engine", default="module")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--as", dest="as_gpu", metavar="GPU", help="use no more than this card of the catalog has")
    args = parser.parse_args()
    sys.exit(main(args.out, args.engine, args.asked, args.steps, args.as_gpu))
