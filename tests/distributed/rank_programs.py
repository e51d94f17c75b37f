"""What one rank does in the distributed tests. Called by RankPool with (rank, world, ...) inside a process group."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist

from core.attention.kernel import CpuFlashKernel, ReferenceKernel
from core.attention.sequence import LocalAttention
from core.data.row import Row
from core.optimizations import REGISTRY
from core.parallel.layout import sequence_layout, shard_row
from core.parallel.mesh import build_mesh
from core.parallel.ring import RingAttention
from core.parallel.ulysses import UlyssesAttention
from core.train.build import verify_setup
from planner.types import OptimizationSetting, ParallelDegrees
from tests.core.model.tiny_models import CPU, loss_and_gradients, tiny_model, tiny_setup


def train_step(
    rank: int,
    world: int,
    degrees: ParallelDegrees,
    family: str,
    shape: dict[str, Any],
    rows: list[Row],
    optimizations: tuple[OptimizationSetting, ...],
    engine: str = "module",
) -> dict[str, Any]:
    """One step with row i on data rank i: SUM-reduced loss and gradients, and what this rank held of it."""
    mesh = build_mesh(degrees, rank=rank, world=world)
    setup = tiny_setup(tiny_model(family, **shape), *optimizations, mesh=mesh, engine=engine)
    for name, parameter in setup.model.named_parameters():
        if ".lora_B." in name:  # zero at the start, which would hide what A gets
            parameter.data += torch.linspace(-0.1, 0.1, parameter.numel(), dtype=parameter.dtype).view_as(parameter)
    row = rows[mesh.data_rank]
    loss, grads = loss_and_gradients(setup, row)
    dist.all_reduce(loss)
    for gradient in grads.values():
        dist.all_reduce(gradient)
    shard = shard_row(row, mesh, CPU)
    return {
        "loss": loss,
        "gradients": grads if rank == 0 else {},
        "num_targets": shard.target_index.numel(),
        "num_tokens": shard.input_ids.numel(),
        "claims": [evidence.claim for evidence in verify_setup(setup, REGISTRY)],
    }


def attention_on_random_packs(rank: int, world: int, degrees: ParallelDegrees, num_packs: int) -> float:
    """Largest error of out, dq, dk, dv over random packs against the reference kernel on the whole row."""
    mesh = build_mesh(degrees, rank=rank, world=world)
    attention = LocalAttention(CpuFlashKernel())
    if degrees.ring > 1:
        attention = RingAttention(CpuFlashKernel(), mesh.ring_group)
    if degrees.ulysses > 1:
        attention = UlyssesAttention(attention, mesh.ulysses_group)
    chance = random.Random(world)
    worst = 0.0
    for pack in range(num_packs):
        lengths = [chance.randint(1, 40) for _ in range(chance.randint(1, 6))]
        cu_seqlens = tuple(sum(lengths[:n]) for n in range(len(lengths) + 1))
        heads, kv_heads = chance.choice([(4, 1), (4, 2), (8, 4)])
        place = {"ring_degree": degrees.ring, "ulysses_degree": degrees.ulysses}
        mine = sequence_layout(cu_seqlens, ring_rank=mesh.ring_rank, ulysses_rank=mesh.ulysses_rank, **place)
        size = mine.padded_tokens
        generator = torch.Generator().manual_seed(pack)
        q, k, v, dout = (
            torch.randn(1, h, size, 4, generator=generator, dtype=torch.float64)
            for h in (heads, kv_heads, kv_heads, heads)
        )
        index = held_positions(size, degrees, mesh.ring_rank, mesh.ulysses_rank)
        whole = sequence_layout(mine.cu_seqlens, ring_degree=1, ring_rank=0, ulysses_degree=1, ulysses_rank=0)
        window = chance.choice([None, 1, 7, 16]) if degrees.ring == 1 else None
        want = _out_and_gradients(LocalAttention(ReferenceKernel()), q, k, v, dout, whole, window)
        got = _out_and_gradients(attention, *(x[:, :, index] for x in (q, k, v, dout)), mine, window)
        worst = max(worst, *((g - w[:, :, index]).abs().max().item() for g, w in zip(got, want)))
    return worst


def held_positions(padded: int, degrees: ParallelDegrees, ring_rank: int, ulysses_rank: int) -> torch.Tensor:
    """The zigzag, written down a second time: positions of the row that a rank holds."""
    if degrees.ring == 1:
        held = torch.arange(padded)
    else:
        chunks = torch.arange(padded).chunk(2 * degrees.ring)
        held = torch.cat((chunks[ring_rank], chunks[-1 - ring_rank]))
    return held.chunk(degrees.ulysses)[ulysses_rank]


def _out_and_gradients(attention, q, k, v, dout, layout, window):
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    out = attention(q, k, v, layout, 0.4, None, window)
    return out.detach(), *torch.autograd.grad(out, (q, k, v), dout)


def build_mesh_for(rank: int, world: int, degrees: ParallelDegrees) -> dict[str, Any]:
    mesh = build_mesh(degrees, rank=rank, world=world)
    groups = {}
    for axis in ("data", "sequence", "ring", "ulysses"):
        group = getattr(mesh, f"{axis}_group")
        groups[axis] = None if group is None else dist.get_process_group_ranks(group)
    return {"ranks": (mesh.data_rank, mesh.ring_rank, mesh.ulysses_rank), "groups": groups}
