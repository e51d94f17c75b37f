"""Both engines against transformers + PEFT + Liger on one GPU, in the same run: speed and peak, Qwen2.5-7B, LoRA r64.

    python benchmarks/engines.py OUT.csv [--engines hf,layer] [--hf FILE] [--steps 5] [--profile FOLDER]
                                 [LENGTH[:ENGINES] ...]

Lengths are 8192 32768 65536 131072 unless given, each with --engines or its own, as in 8192:hf,layer,layer-free.
Random weights and ids, batch 1, every token a label, torch AdamW.
The engines take turns at each length, in one process (FlashAttention-4 is compiled once); each row starts with nothing
allocated. Tokens/s is the median of --steps after 2 to warm up, 1 from 32K on. A row that fails says so and does not
stop the others; the file is rewritten after each row. --profile writes the kernels of one more step of each of our
rows, by time. --hf: the rows of hf are those of FILE, which another process wrote on the same card just before; they
are compared with and written too.

    hf          transformers' own loop as fast as it goes: bf16 adapters, Liger's RMSNorm, SwiGLU, RoPE and fused linear
                cross entropy, gradient checkpointing, autocast, cuDNN attention
    layer       the layer engine, fp32 adapters: attention outputs kept, the first 14 layers' in host memory
    layer-lean  the same with all but one layer's in host memory, and head groups
    layer-hold  the same with nothing in host memory
    layer-free  the layer engine where memory is left over: nothing is recomputed
    module      longfit's level 1, not together with hf, whose Liger replaces the classes: the same Liger ops, chunked
                loss, the attention kernel that the start-up probe chooses, attention outputs kept; they and the layer
                inputs wait in host memory
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MODEL = "Qwen/Qwen2.5-7B-Instruct"
LENGTHS = (8192, 32768, 65536, 131072)
LONG_TOKENS = 32768
LORA = {"rank": 64, "alpha": 128, "adapter_dtype": "bfloat16"}


def values_of(engine: str, length: int) -> dict[str, Any]:
    """The preset keys of ours."""
    if engine == "module":
        return {
            "lora": LORA, "gradient_checkpointing": {"save_attention": True}, "fused_loss": True, "liger": True,
            "checkpoint_offload": True,
        }  # fmt: skip
    values = {"lora": {**LORA, "adapter_dtype": "float32"}, "fused_loss": True}
    if engine != "layer-free":
        values["gradient_checkpointing"] = {"save_attention": True}
    if engine in ("layer", "layer-lean"):
        values["checkpoint_offload"] = {"kept_layers": 14 if engine == "layer" else 1}
    if engine == "layer-lean":
        values["fake_parallel"] = 2
    return values


def run_ours(engine: str, length: int, num_steps: int, profile: str) -> dict[str, Any]:
    from benchmarks.random_run import measure, random_run, write_profile

    values = values_of(engine, length)
    run = random_run(MODEL, length, {**values, **rope_of(length), "engine": engine.partition("-")[0]})
    measured = measure(run.step, length, warm_up=_warm_up(length), steps=num_steps)
    if profile:
        write_profile(run.step, Path(profile) / f"{engine}-{length}.txt")
    gpu = run.plan.worst_gpu
    row = {
        **measured, "attention": run.setup.attention.kernel.name, "values": json.dumps(values, sort_keys=True),
        "planned_allocated": gpu.allocated.peak_bytes, "planned_used": gpu.used_bytes,
        "planned_tokens_per_second": round(run.plan.tokens_per_second, 1),
        "evidence": " | ".join(run.evidence()), "fallbacks": " | ".join(run.fallbacks),
    }  # fmt: skip
    run.setup.restore()
    return row


def run_hf(length: int, num_steps: int) -> dict[str, Any]:
    import torch
    from liger_kernel.transformers import apply_liger_kernel_to_qwen2
    from peft import LoraConfig, get_peft_model
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from benchmarks.random_run import measure, random_ids

    apply_liger_kernel_to_qwen2(rope=True, rms_norm=True, swiglu=True, fused_linear_cross_entropy=True)
    model = _hf_model(length)
    model.requires_grad_(False).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    lora = LoraConfig(r=LORA["rank"], lora_alpha=LORA["alpha"], target_modules=targets, task_type="CAUSAL_LM")
    peft_model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    peft_model.enable_input_require_grads()
    trainable = [p for p in peft_model.parameters() if p.requires_grad]
    for parameter in trainable:
        parameter.data = parameter.data.bfloat16()
    optimizer = torch.optim.AdamW(trainable, lr=1e-4)
    ids = random_ids(length, model.config.vocab_size)[None].cuda()

    def step() -> float:
        with torch.autocast("cuda", dtype=torch.bfloat16), sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            loss = peft_model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    measured = measure(step, length, warm_up=_warm_up(length), steps=num_steps)
    return {**measured, "attention": f"SDPA cuDNN {torch.backends.cudnn.version()}"}


def rope_of(length: int) -> dict[str, Any]:
    """Beyond the 32,768 positions of the model, as a user would have to ask for it."""
    return {"rope_scaling": {"type": "yarn", "factor": length / 32768}} if length > 32768 else {}


def _hf_model(length: int) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from core.model.load import scale_rope
    from planner.catalog.models import MODELS

    torch.manual_seed(0)
    config = AutoConfig.for_model(**{key: value for key, value in MODELS[MODEL].items() if value is not None})
    scale_rope(config, rope_of(length).get("rope_scaling", {}))
    config.use_cache = False
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")


def _warm_up(length: int) -> int:
    return 2 if length < LONG_TOKENS else 1


COLUMNS = (
    "engine", "length", "tokens_per_second", "slowest_tokens_per_second", "steps", "loss", "allocated", "reserved",
    "used", "planned_allocated", "planned_used", "planned_tokens_per_second", "speed_ratio", "peak_ratio", "attention",
    "values", "evidence", "fallbacks", "problem", "gpu", "torch", "versions", "commit", "date",
)  # fmt: skip


def compare(row: dict[str, Any], hf: Mapping[str, Any] | None) -> None:
    """Fill in the ratios of one of our rows."""
    if hf is not None and not hf.get("problem") and "problem" not in row:
        row["speed_ratio"] = round(row["tokens_per_second"] / float(hf["tokens_per_second"]), 3)
        row["peak_ratio"] = round(row["allocated"] / int(hf["allocated"]), 3)


def main(out: str, cases: list[tuple[int, list[str]]], hf_file: str, num_steps: int, profile: str) -> int:
    from importlib.metadata import PackageNotFoundError, version

    def found(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "none"

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    packages = ("transformers", "peft", "liger-kernel", "flash-attn-4", "triton")
    facts = {
        "versions": " ".join(f"{name}={found(name)}" for name in packages),
        "commit": os.environ.get("LONGFIT_COMMIT", commit.strip()), "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    if hf_file:
        with Path(hf_file).open(newline="") as file:
            rows += [row for row in csv.DictReader(file) if row["engine"] == "hf"]
    for length, engines in cases:
        for engine in engines:
            row = {"engine": engine, "length": length, **_run(engine, length, num_steps, profile), **facts}
            if engine != "hf":
                known = (r for r in rows if r["engine"] == "hf" and int(r["length"]) == length)
                compare(row, next(known, None))
            rows.append(row)
            print({key: row[key] for key in COLUMNS if row.get(key) not in (None, "")}, flush=True)
            with Path(out).open("w", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
    return 0 if not any(row.get("problem") for row in rows) else 1


def _run(engine: str, length: int, num_steps: int, profile: str) -> dict[str, Any]:
    import torch

    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    left = torch.cuda.memory_allocated()
    try:
        assert left < 512 * 2**20, f"{left} bytes are left of the row before"
        return run_hf(length, num_steps) if engine == "hf" else run_ours(engine, length, num_steps, profile)
    except Exception as error:
        traceback.print_exc()
        return {"problem": f"{type(error).__name__}: {error}"[-600:]}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    parser = argparse.ArgumentParser(description="both engines against transformers + PEFT + Liger")
    parser.add_argument("out")
    parser.add_argument("lengths", nargs="*", default=[str(length) for length in LENGTHS])
    parser.add_argument("--engines", default="hf,layer")
    parser.add_argument("--hf", default="")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--profile", default="")
    args = parser.parse_args()
    wanted = [text.partition(":") for text in args.lengths]
    cases = [(int(length), (engines or args.engines).split(",")) for length, _, engines in wanted]
    if {"hf", "module"} <= {engine for _, engines in cases for engine in engines}:
        parser.error("hf and module take a run each: Liger's patches for hf replace the classes that module looks for")
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    sys.exit(main(args.out, cases, args.hf, args.steps, args.profile))
