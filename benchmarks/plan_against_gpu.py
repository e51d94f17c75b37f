"""Planned against measured on one CUDA GPU: true shapes, random weights, the longest row, a few optimizer steps.

    python benchmarks/plan_against_gpu.py OUT.csv [ROW ...]        all rows, or those whose name starts so

Each row runs in a process of its own, so that the CUDA context and the allocator start fresh. The last step is timed
and its peaks are taken (optimizer states exist by then). Columns: planned and measured allocated, reserved and used
bytes, planned and measured tokens/s, and what identifies the run.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
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


def measure(name: str) -> dict[str, Any]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from app.services.hardware import detect_cluster
    from app.services.planning import plan_resolved
    from app.services.resolve import resolve
    from core.attention.register import ATTENTION_NAME, register_attention
    from core.data.row import Row
    from core.optimizations import REGISTRY
    from core.parallel.layout import shard_row
    from core.parallel.mesh import build_mesh
    from core.train.build import build_setup
    from core.train.forward import forward_loss
    from core.train.optimizer import build_optimizer
    from planner.catalog.models import MODELS
    from planner.types import Preset

    model_name, length, values = ROWS[name]
    preset = Preset(
        name=name, description="",
        values={"model": model_name, "max_length": length, "data": {"train": ["random"]}, **values},
    )  # fmt: skip
    resolved = resolve(preset, cluster=detect_cluster(1))
    plan = plan_resolved(resolved)
    config, spec = resolved.config, resolved.model

    device = torch.device("cuda")
    torch.manual_seed(0)
    register_attention()
    hf_config = AutoConfig.for_model(**{key: value for key, value in MODELS[model_name].items() if value is not None})
    hf_config.use_cache = False
    with device:
        model = AutoModelForCausalLM.from_config(hf_config, dtype=torch.bfloat16, attn_implementation=ATTENTION_NAME)
    model.requires_grad_(config.method == "full").train()
    mesh = build_mesh(config.parallel, rank=0, world=1)
    setup = build_setup(config, spec, model, mesh, device, lambda kind, data: None, REGISTRY)
    optimizer = build_optimizer(
        setup.model, optim=config.optim, learning_rate=1e-4, weight_decay=0.0, betas=(0.9, 0.999), epsilon=1e-8
    )
    torch.cuda.synchronize()
    static = torch.cuda.memory_allocated()
    ids = torch.randint(0, spec.vocab_size, (length,))
    row = Row(
        input_ids=ids, labels=torch.cat((ids[1:], torch.tensor([-100]))), position_ids=torch.arange(length),
        cu_seqlens=(0, length), sample_ids=(0,), num_targets=length - 1,
    )  # fmt: skip
    instants: dict[str, int] = {}
    seconds = []
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = forward_loss(setup, shard_row(row, mesh, device)) / row.num_targets
        torch.cuda.synchronize()
        instants["forward_loss"] = torch.cuda.max_memory_allocated()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    used = _nvml_used()
    gpu = plan.worst_gpu
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    tokens_per_second = length / sorted(seconds[1:])[len(seconds[1:]) // 2]
    return {
        "row": name, "model": model_name, "length": length, "loss": round(loss.item(), 4),
        "planned_allocated": gpu.allocated.peak_bytes, "measured_allocated": allocated,
        "allocated_error_percent": _percent(gpu.allocated.peak_bytes, allocated),
        "planned_reserved": gpu.reserved_bytes, "measured_reserved": reserved,
        "planned_used": gpu.used_bytes, "measured_used": used, "used_error_percent": _percent(gpu.used_bytes, used),
        "planned_instant": gpu.allocated.peak_instant,
        "planned_forward_loss": gpu.allocated.bytes_at("forward_loss"),
        "measured_forward_loss": instants["forward_loss"],
        "measured_static": static,
        "planned_tokens_per_second": round(plan.tokens_per_second, 1),
        "measured_tokens_per_second": round(tokens_per_second, 1),
        "speed_error_percent": _percent(plan.tokens_per_second, tokens_per_second),
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "attention": setup.attention.kernel.name,
        "values": json.dumps(values, sort_keys=True),
    }  # fmt: skip


def _percent(planned: float, measured: float) -> float:
    return round(100 * (planned / measured - 1), 2)


def _nvml_used() -> int:
    """Bytes of this process; the whole device's where the driver does not tell processes apart (containers)."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid() and process.usedGpuMemory:
            return int(process.usedGpuMemory)
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


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
        print(json.dumps(measure(sys.argv[2])))
    else:
        sys.exit(main(*sys.argv[1:]))
