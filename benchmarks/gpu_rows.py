"""Rows measured on this GPU, as CSV, each with what a reader needs to compare it. Used by cudnn_lengths.py and
sustained.py."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch


def write_gpu_rows(path: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Columns in the order in which rows first have them, then GPU, torch, commit and date."""
    facts = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "commit": os.environ.get("LONGFIT_COMMIT", ""), "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
    columns = (*dict.fromkeys(name for row in rows for name in row), *facts)
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns)
        writer.writeheader()
        writer.writerows({**row, **facts} for row in rows)
