"""A training run of ours with random weights and ids on one GPU, and what is measured of it. Used by engines.py,
fake_parallel.py and plan_against_gpu.py."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from app.services.hardware import detect_cluster
from app.services.planning import plan_resolved
from app.services.resolve import Resolved, resolve
from core.data.row import Row
from core.optimizations import REGISTRY
from core.parallel.layout import Shard, shard_row
from core.parallel.mesh import build_mesh
from core.rehearse.random_model import random_model
from core.train.build import build_setup, verify_setup
from core.train.forward import forward_loss
from core.train.optimizer import build_optimizer
from core.train.setup import TrainingSetup
from planner.catalog.models import MODELS
from planner.types import Plan, Preset

DEVICE = torch.device("cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomRun:
    resolved: Resolved
    plan: Plan
    setup: TrainingSetup
    optimizer: torch.optim.Optimizer
    shard: Shard
    num_targets: int
    fallbacks: tuple[str, ...]

    def step(self) -> float:
        """Forward, backward and update; the mean loss."""
        loss = forward_loss(self.setup, self.shard) / self.num_targets
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def evidence(self) -> tuple[str, ...]:
        """Raises: NotActive where an optimization did not do what it says."""
        return tuple(evidence.claim for evidence in verify_setup(self.setup, REGISTRY))


def random_run(model_name: str, length: int, values: Mapping[str, Any]) -> RandomRun:
    """``values``: preset keys beside model, max_length and data. One row of ``length`` tokens, all of them targets."""
    given = {"model": model_name, "max_length": length, "data": {"train": ["random"]}, **values}
    resolved = resolve(Preset(name="random", description="", values=given), cluster=detect_cluster(1))
    config = resolved.config
    model, spec = random_model(config, MODELS[model_name], DEVICE)
    mesh = build_mesh(config.parallel, rank=0, world=1)
    fallbacks: list[str] = []

    def note(kind: str, data: Mapping[str, Any]) -> None:
        if kind == "fallback":
            fallbacks.append(str(data["reason"]))

    setup = build_setup(config, spec, model, mesh, DEVICE, note, REGISTRY)
    optimizer = build_optimizer(
        setup.model, optim=config.optim, learning_rate=1e-4, weight_decay=0.0, betas=(0.9, 0.999), epsilon=1e-8,
        projection=setup.projection,
    )  # fmt: skip
    setup.optimizer = optimizer
    ids = random_ids(length, spec.vocab_size)
    row = Row(
        input_ids=ids, labels=torch.cat((ids[1:], torch.tensor([-100]))), position_ids=torch.arange(length),
        cu_seqlens=(0, length), sample_ids=(0,), num_targets=length - 1,
    )  # fmt: skip
    return RandomRun(
        resolved=replace(resolved, model=spec), plan=plan_resolved(resolved), setup=setup, optimizer=optimizer,
        shard=shard_row(row, mesh, DEVICE), num_targets=row.num_targets, fallbacks=tuple(fallbacks),
    )  # fmt: skip


def random_ids(length: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (length,), generator=torch.Generator().manual_seed(0))


def measure(step: Callable[[], float], length: int, *, warm_up: int, steps: int) -> dict[str, Any]:
    """Tokens/s, the median and the slowest of ``steps`` after ``warm_up``, and the highest bytes of those."""
    seconds, loss = [], float("nan")
    for index in range(warm_up + steps):
        if index == warm_up:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        started = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        if index >= warm_up:
            seconds.append(time.perf_counter() - started)
    return {
        "tokens_per_second": round(length / statistics.median(seconds), 1),
        "slowest_tokens_per_second": round(length / max(seconds), 1), "steps": steps, "loss": round(loss, 4),
        "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(),
        "used": nvml_used(), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
    }  # fmt: skip


def nvml_used() -> int:
    """Bytes of this process; the whole device's where the driver does not tell processes apart (containers)."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid() and process.usedGpuMemory:
            return int(process.usedGpuMemory)
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def write_profile(step: Callable[[], float], path: Path) -> None:
    """The kernels of one step, by time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    table = profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=90)
    path.write_text(table, encoding="utf-8")
