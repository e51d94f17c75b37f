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
    from dataclasses import replace

    import torch

    from app.services.hardware import detect_cluster
    from app.services.planning import plan_resolved
    from app.services.resolve import resolve
    from benchmarks.engines import MODEL, _ids, _measure, _random_model
    from core.attention.register import ATTENTION_NAME, register_attention
    from core.data.row import Row
    from core.model.nf4 import quantise_linears
    from core.optimizations import REGISTRY
    from core.parallel.layout import shard_row
    from core.parallel.mesh import build_mesh
    from core.train.build import build_setup, verify_setup
    from core.train.forward import forward_loss
    from core.train.optimizer import build_optimizer
    from planner.types import Preset

    engine, extra = CASES[case]
    values = {"qlora": LORA, "gradient_checkpointing": True, **extra}
    preset = Preset(
        name="fake-parallel", description="",
        values={"model": MODEL, "max_length": LENGTH, "data": {"train": ["random"]}, **values},
    )  # fmt: skip
    resolved = resolve(preset, cluster=detect_cluster(1))
    resolved = replace(resolved, config=replace(resolved.config, engine=engine))
    config, device = resolved.config, torch.device("cuda")
    register_attention()
    model = _random_model(ATTENTION_NAME, LENGTH)
    model.requires_grad_(False).train()
    quantise_linears(model, double_quant=True, dtype=torch.bfloat16, device=device)
    mesh = build_mesh(config.parallel, rank=0, world=1)
    setup = build_setup(config, resolved.model, model, mesh, device, lambda *_: None, REGISTRY)
    optimizer = build_optimizer(
        setup.model, optim=config.optim, learning_rate=1e-4, weight_decay=0.0, betas=(0.9, 0.999), epsilon=1e-8
    )
    ids = _ids(LENGTH, resolved.model.vocab_size)
    row = Row(
        input_ids=ids, labels=torch.cat((ids[1:], torch.tensor([-100]))), position_ids=torch.arange(LENGTH),
        cu_seqlens=(0, LENGTH), sample_ids=(0,), num_targets=LENGTH - 1,
    )  # fmt: skip

    def step() -> float:
        loss = forward_loss(setup, shard_row(row, mesh, device)) / row.num_targets
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    step()
    static = torch.cuda.memory_allocated()
    measured = _measure(step, LENGTH, num_steps)
    verify_setup(setup, REGISTRY)
    layer_inputs = 2 * resolved.model.hidden_size * LENGTH * resolved.model.num_layers
    plan = plan_resolved(resolved).worst_gpu
    setup.restore()
    return {
        **measured, "case": case, "engine": engine, "values": str(values), "static": static,
        "layer_inputs": layer_inputs, "above": measured["allocated"] - static - layer_inputs,
        "planned_allocated": plan.allocated.peak_bytes, "commit": os.environ.get("LONGFIT_COMMIT", ""),
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
