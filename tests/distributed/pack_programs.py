"""What one rank does in the tests of packed data. Called by RankPool with (rank, world, ...) inside a process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from core.data.batches import BatchPlan
from core.data.row import Row
from core.data.store import TokenStore
from core.parallel.mesh import build_mesh
from planner.types import OptimizationSetting, ParallelDegrees
from tests.core.model.tiny_models import loss_and_gradients, tiny_model, tiny_setup
from tests.core.model.token_losses import token_losses


def losses_of_rows(
    rank: int,
    world: int,
    degrees: ParallelDegrees,
    shape: dict[str, Any],
    optimizations: tuple[OptimizationSetting, ...],
    rows: list[Row],
) -> list[Tensor]:
    """Token losses of each row, all ranks sharing it, float32."""
    mesh = build_mesh(degrees, rank=rank, world=world)
    setup = tiny_setup(tiny_model("llama", dtype=torch.float32, **shape), *optimizations, mesh=mesh)
    return [token_losses(setup, row) for row in rows]


def epoch_of_store(
    rank: int, world: int, path: str, packing: bool, shape: dict[str, Any]
) -> tuple[float, dict[str, Tensor], list[tuple[int, ...]]]:
    """An epoch of a prepared set, this rank's micro-batches one after another: summed loss, gradients, sample ids."""
    store = TokenStore(path)
    setup = tiny_setup(
        tiny_model("llama", **shape), mesh=build_mesh(ParallelDegrees(data=world), rank=rank, world=world)
    )
    plan = BatchPlan(store, packing=packing, capacity=256, data_rank=rank, data_world=world)
    indices = range(plan.num_micro_batches(0))
    total, sums = torch.zeros((), dtype=torch.float64), {}
    for index in indices:
        loss, gradients = loss_and_gradients(setup, plan.row(0, index))
        total += loss
        sums = {name: gradient + sums.get(name, 0) for name, gradient in gradients.items()}
    for tensor in (total, *sums.values()):
        dist.all_reduce(tensor)
    return total.item(), sums, [plan.sample_ids(0, index) for index in indices]
