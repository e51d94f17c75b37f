"""What rehearsals and runs found against their plans, kept in the cache: one JSON line each, a file a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.services.locations import cache_dir


def calibration_file(gpu_name: str) -> Path:
    plain = re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-") or "unknown"
    return cache_dir() / "calibration" / f"{plain}.jsonl"


def store_calibration(gpu_name: str, record: Mapping[str, Any]) -> Path:
    path = calibration_file(gpu_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, sort_keys=True) + "\n")
    return path


def read_calibrations(gpu_name: str) -> tuple[dict[str, Any], ...]:
    """Oldest first; a line that a kill cut short is passed over."""
    try:
        lines = calibration_file(gpu_name).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return ()
    records: list[dict[str, Any]] = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return tuple(records)
