"""Planned against measured on one CUDA GPU: true shapes, random weights, the longest row, a few optimizer steps.

    python benchmarks/plan_against_gpu.py OUT.csv [ROW ...]        all rows, or those whose name starts so

Each row runs on transformers' modules in a process of its own, so that the CUDA context and the allocator start fresh.
The steps after the first are timed and their peaks taken (optimizer states exist by then). Columns: planned and
measured allocated, reserved and used bytes, planned and measured tokens/s, and what identifies the run.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LORA_FP32 = {"lora": {"rank": 64, "alpha": 128, "adapter_dtype": "float32"}, "autocast": False}
LORA_FP32_AUTOCAST = {"lora": {"rank": 64, "alpha": 128, "adapter_dtype": "float32"}, "autocast": True}
LORA_BF16 = {"lora": {"rank": 64, "alpha": 128, "adapter_dtype": "bfloat16"}}
MEMORY = {"gradient_checkpointing": True, "fused_loss": True}
QWEN = "Qwen/Qwen2.5-7B-Instruct"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"

ROWS: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{f"stock-fp32-{n}": (QWEN, n, {**LORA_FP32, "gradient_checkpointing": True}) for n in (8192, 16384, 32768)},
    **{
        f"fused-bf16-{n}": (QWEN, n, {**LORA_BF16, "gradient_checkpointing": True, "fused_loss": True})
        for n in (8192, 32768, 65536)
    },
    "fused-fp32-autocast-8192": (QWEN, 8192, {**LORA_FP32_AUTOCAST, **MEMORY}),
    "fused-fp32-8192": (QWEN, 8192, {**LORA_FP32, **MEMORY}),
    "no-checkpointing-bf16-8192": (QWEN, 8192, {**LORA_BF16, "fused_loss": True}),
    **{
        f"fake-parallel-{g}-bf16-32768": (
            QWEN, 32768, {**LORA_BF16, "gradient_checkpointing": True, "fused_loss": True, "fake_parallel": g},
        )
        for g in (2, 4)
    },
    "llama-fused-bf16-65536": (LLAMA, 65536, {**LORA_BF16, "gradient_checkpointing": True, "fused_loss": True}),
    "full-0.5b-16384": ("Qwen/Qwen2.5-0.5B-Instruct", 16384, {"gradient_checkpointing": True, "fused_loss": True}),
    "full-0.5b-stock-8192": ("Qwen/Qwen2.5-0.5B-Instruct", 8192, {"gradient_checkpointing": True}),
}  # fmt: skip
STEPS = 4


def measure_row(name: str) -> dict[str, Any]:
    import torch

    from benchmarks.random_run import measure, random_run

    model_name, length, values = ROWS[name]
    run = random_run(model_name, length, {**values, "engine": "module"})
    torch.cuda.synchronize()
    static = torch.cuda.memory_allocated()
    measured = measure(run.step, length, warm_up=1, steps=STEPS - 1)
    gpu, allocated, used = run.plan.worst_gpu, measured["allocated"], measured["used"]
    return {
        "row": name, "model": model_name, "length": length, "loss": measured["loss"],
        "planned_allocated": gpu.allocated.peak_bytes, "measured_allocated": allocated,
        "allocated_error_percent": _percent(gpu.allocated.peak_bytes, allocated),
        "planned_reserved": gpu.reserved_bytes, "measured_reserved": measured["reserved"],
        "planned_used": gpu.used_bytes, "measured_used": used, "used_error_percent": _percent(gpu.used_bytes, used),
        "planned_instant": gpu.allocated.peak_instant, "measured_static": static,
        "planned_tokens_per_second": round(run.plan.tokens_per_second, 1),
        "measured_tokens_per_second": measured["tokens_per_second"],
        "speed_error_percent": _percent(run.plan.tokens_per_second, measured["tokens_per_second"]),
        "gpu": measured["gpu"], "torch": measured["torch"], "attention": run.setup.attention.kernel.name,
        "values": json.dumps(values, sort_keys=True),
    }  # fmt: skip


def _percent(planned: float, measured: float) -> float:
    return round(100 * (planned / measured - 1), 2)


def main(out: str, *prefixes: str) -> int:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    commit = os.environ.get("LONGFIT_COMMIT", commit)
    rows: list[dict[str, Any]] = []
    for name in ROWS:
        if prefixes and not name.startswith(prefixes):
            continue
        done = subprocess.run([sys.executable, __file__, "--row", name], capture_output=True, text=True,
                              env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})  # fmt: skip
        if done.returncode:
            print(name, "FAILED", done.stderr.strip().splitlines()[-1:], flush=True)
            Path(out).with_suffix(f".{name}.err").write_text(done.stderr[-4000:])
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append({**row, "commit": commit, "date": datetime.now(UTC).strftime("%Y-%m-%d")})
        print(*(f"{k}={row[k]}" for k in ("row", "measured_allocated", "allocated_error_percent", "used_error_percent",
                "measured_tokens_per_second", "speed_error_percent")), flush=True)  # fmt: skip
        with Path(out).open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    if sys.argv[1] == "--row":
        print(json.dumps(measure_row(sys.argv[2])))
    else:
        sys.exit(main(*sys.argv[1:]))
