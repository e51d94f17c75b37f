"""Small numbers from every rank to every rank: counts, losses, wishes. Used by the trainer and the evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from core.parallel.mesh import Mesh


def exchange(values: Sequence[float], mesh: Mesh, device: torch.device) -> list[list[float]]:
    """``values`` of every rank, in rank order and exact (float64, counts up to 2^53): all ranks then decide alike,
    and sums over the answer are formed in one fixed order. Waits for the device.

    Collective: every rank of the world, with as many values.
    """
    if mesh.world == 1:
        return [list(values)]
    own = torch.tensor(values, dtype=torch.float64, device=device)
    gathered = [torch.empty_like(own) for _ in range(mesh.world)]
    dist.all_gather(gathered, own)
    rows: list[list[float]] = torch.stack(gathered).tolist()
    return rows
