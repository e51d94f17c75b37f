"""What fake-parallel saves, on one GPU: Qwen2.5-7B shape, QLoRA r16, one row of 12K tokens, in one run.

    python benchmarks/fake_parallel.py OUT.csv [--steps 5]

    A        transformers' modules, stock loss, every layer recomputed
    B        A with the chunked loss
    B layer  the same on the layer engine
    C        B layer with fake_parallel: 4

``above`` is what the peak holds above static bytes and layer inputs: the part that fake-parallel is there for.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import sys
from pathlib import Path
from typing import Any

MODEL = "Qwen/Qwen2.5-7B-Instruct"
LENGTH = 12288
LORA = {"rank": 16, "alpha": 32, "adapter_dtype": "float32", "double_quant": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "A": ("module", {}),
    "B": ("module", {"fused_loss": True}),
    "B layer": ("layer", {"fused_loss": True}),
    "C": ("layer", {"fused_loss": True, "fake_parallel": 4}),
}
COLUMNS = (
    "case", "engine", "values", "tokens_per_second", "slowest_tokens_per_second", "steps", "loss", "allocated",
    "static", "layer_inputs", "above", "planned_allocated", "allocated_against_a", "above_against_b",
    "speed_against_b", "reserved", "used", "gpu", "torch", "commit",
)  # fmt: skip


def run(case: str, num_steps: int) -> dict[str, Any]:
    import torch

    from benchmarks.random_run import measure, random_run

    engine, extra = CASES[case]
    values = {"qlora": LORA, "gradient_checkpointing": True, **extra}
    random = random_run(MODEL, LENGTH, {**values, "engine": engine})
    random.step()
    static = torch.cuda.memory_allocated()
    measured = measure(random.step, LENGTH, warm_up=1, steps=num_steps)
    random.evidence()
    model = random.resolved.model
    layer_inputs = 2 * model.hidden_size * LENGTH * model.num_layers
    random.setup.restore()
    return {
        **measured, "case": case, "engine": engine, "values": str(values), "static": static,
        "layer_inputs": layer_inputs, "above": measured["allocated"] - static - layer_inputs,
        "planned_allocated": random.plan.worst_gpu.allocated.peak_bytes,
        "commit": os.environ.get("LONGFIT_COMMIT", ""),
    }  # fmt: skip


def main(out: str, num_steps: int) -> None:
    import torch

    rows: dict[str, dict[str, Any]] = {}
    for case in CASES:
        gc.collect()
        torch.cuda.empty_cache()
        row = rows[case] = run(case, num_steps)
        row["allocated_against_a"] = round(row["allocated"] / rows["A"]["allocated"] - 1, 4)
        if "B" in rows:
            row["above_against_b"] = round(row["above"] / rows["B"]["above"] - 1, 4)
            row["speed_against_b"] = round(row["tokens_per_second"] / rows["B"]["tokens_per_second"] - 1, 4)
        print({key: row.get(key) for key in COLUMNS}, flush=True)
        with Path(out).open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=COLUMNS)
            writer.writeheader()
            writer.writerows(rows.values())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    parser = argparse.ArgumentParser(description="what fake-parallel saves")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=5)
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    arguments = parser.parse_args()
    main(arguments.out, arguments.steps)
