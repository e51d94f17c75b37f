"""What one rank does in the tests of fsdp. Called by RankPool with (rank, world, ...) inside a process group."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from core.data.row import Row
from core.optimizations import REGISTRY
from core.parallel.layout import shard_row
from core.parallel.mesh import build_mesh
from core.parallel.sharded import gather, local_rows, own_rows
from core.train.build import optimizer_of, verify_setup
from core.train.forward import forward_loss
from core.train.optimizer import clip_gradients, gradient_norm
from core.train.setup import TrainingSetup
from planner.types import OptimizationSetting, ParallelDegrees
from tests.core.model.tiny_models import CPU, setting, tiny_model, tiny_setup
from tests.distributed.train_programs import train_rank

MAX_NORM = 0.5  # below that of every case: clipping takes part


@torch.no_grad()
def move_adapters(setup: TrainingSetup) -> None:
    """B is zero at the start, which would hide what A gets."""
    for name, parameter in setup.model.named_parameters():
        if ".lora_B." in name:
            noise = torch.linspace(-0.1, 0.1, parameter.numel(), dtype=parameter.dtype).view(parameter.shape)
            local_rows(parameter).copy_(noise[own_rows(parameter) or slice(None)])


def sharded_step(
    rank: int,
    world: int,
    degrees: ParallelDegrees,
    family: str,
    shape: dict[str, Any],
    windows: list[list[Row]],
    optimizations: tuple[OptimizationSetting, ...],
    keys: dict[str, Any],
) -> dict[str, Any]:
    """An optimizer step over ``windows[data rank]``, a micro-batch each: summed loss, all gradients before clipping,
    their norm, all weights after the step, and what this rank held."""
    mesh = build_mesh(degrees, rank=rank, world=world)
    model = tiny_model(family, **shape)
    originals = [weakref.ref(parameter) for parameter in model.parameters()]
    setup = tiny_setup(model, *optimizations, setting("fsdp"), mesh=mesh, **keys)
    move_adapters(setup)
    gc.collect()
    optimizer = optimizer_of(setup)
    assert setup.sharded is not None
    loss_sum = torch.zeros((), dtype=torch.float64)
    for row in windows[mesh.data_rank]:
        loss = forward_loss(setup, shard_row(row, mesh, CPU))
        loss.backward()
        loss_sum += loss.detach()
    dist.all_reduce(loss_sum)
    own = setup.sharded.take_gradients()
    shards = {n: setup.sharded.as_shard(n, p.grad) for n, p in setup.trained.items() if p.grad is not None}
    gradients = gather(shards, rank=rank)
    norm = gradient_norm(own, over_ranks=True)
    clip_gradients(own, norm, MAX_NORM)
    optimizer.step()
    optimizer.zero_grad()
    weights = gather({n: setup.sharded.as_shard(n, p.detach()) for n, p in setup.trained.items()}, rank=rank)
    evidence = verify_setup(setup, REGISTRY)
    setup.restore()
    return {
        "loss": loss_sum.item(),
        "gradients": gradients,
        "norm": norm.item(),
        "weights": weights,
        "claims": [item.claim for item in evidence],
        "counts": {item.optimization: dict(item.counts) for item in evidence},
        "whole_left": sum(original() is not None for original in originals),
    }


def train_on_shards(rank: int, world: int, path: str, stop_after: int | None = None) -> dict[str, Any]:
    """What ``train_rank`` says, without the shards themselves, which no other process can read."""
    return {key: value for key, value in train_rank(rank, world, path, stop_after).items() if key != "weights"}


def whole_step(
    family: str,
    shape: dict[str, Any],
    rows: list[Row],
    optimizations: tuple[OptimizationSetting, ...],
    keys: dict[str, Any],
) -> tuple[float, dict[str, Tensor], float, dict[str, Tensor]]:
    """The same on one process without shards: (loss, gradients, norm, weights after the step)."""
    setup = tiny_setup(tiny_model(family, **shape), *optimizations, **keys)
    move_adapters(setup)
    optimizer = optimizer_of(setup)
    total = 0.0
    for row in rows:
        loss = forward_loss(setup, shard_row(row, setup.mesh, CPU))
        loss.backward()
        total += loss.item()
    parameters = setup.trained
    gradients = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
    norm = gradient_norm(parameters.values())
    clip_gradients(parameters.values(), norm, MAX_NORM)
    optimizer.step()
    setup.restore()
    return total, gradients, norm.item(), {name: p.detach() for name, p in parameters.items()}
