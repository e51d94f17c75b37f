"""Seconds of one micro-batch after another, and the clock and power of the card at every fourth: does a short
measurement tell what a long run will do?

    python benchmarks/sustained.py OUT.csv [--length 8192] [--count 40] [ENGINE ...]

Engines and their settings are those of engines.py but for `layer`, which is that of the preset qwen2.5-7b-8k-1x24g.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

PRESET = {
    "lora": {"rank": 64, "alpha": 128, "adapter_dtype": "bfloat16"}, "fused_loss": True, "packing": True,
    "gradient_checkpointing": True,
}  # fmt: skip


def rows_of(engine: str, length: int, count: int) -> list[dict[str, Any]]:
    import pynvml

    from benchmarks.engines import MODEL, values_of
    from benchmarks.random_run import random_run
    from core.train.forward import forward_loss

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    values = PRESET if engine == "layer" else values_of(engine, length)
    run = random_run(MODEL, length, {**values, "engine": engine.partition("-")[0]})
    rows: list[dict[str, Any]] = []
    for index in range(-1, count):
        torch.cuda.synchronize()
        started = time.perf_counter()
        (forward_loss(run.setup, run.shard) / run.num_targets).backward()
        row: dict[str, Any] = {"engine": engine, "micro_batch": index}
        if index % 4 == 3:  # while the card works
            row["sm_mhz"] = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
            row["watts"] = round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)
            row["celsius"] = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        torch.cuda.synchronize()
        row["seconds"] = round(time.perf_counter() - started, 4)
        if index >= 0:  # the first one warms up
            rows.append(row)
    run.setup.restore()
    return rows


def main(out: str, engines: list[str], length: int, count: int) -> None:
    facts = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "commit": os.environ.get("LONGFIT_COMMIT", ""), "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
    rows = [{**row, **facts} for engine in engines for row in rows_of(engine, length, count)]
    columns = ("engine", "micro_batch", "seconds", "sm_mhz", "watts", "celsius", *facts)
    with Path(out).open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    parser = argparse.ArgumentParser(description="one micro-batch after another")
    parser.add_argument("out")
    parser.add_argument("engines", nargs="*", default=["layer", "module"])
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--count", type=int, default=40)
    args = parser.parse_args()
    main(args.out, args.engines, args.length, args.count)
