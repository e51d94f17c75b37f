"""Cross entropy of every position of a row through the forward of training, whole on every rank that shares the row."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from core.data.row import IGNORE_INDEX, Row
from core.parallel.layout import Shard, shard_row
from core.train.forward import forward_loss
from core.train.setup import TrainingSetup


def token_losses(setup: TrainingSetup, row: Row) -> Tensor:
    """(S,) float32 or wider on the CPU, 0 where there is no target. Collective over the sequence group.

    A position is told by its place in the row, which every rank finds again among the tokens that it holds.
    """
    seen: list[Tensor] = []

    def record(hidden: Tensor, head: Tensor, labels: Tensor, target_index: Tensor) -> Tensor:
        logits = (hidden[0] @ head.T).to(torch.promote_types(hidden.dtype, torch.float32))
        seen.append(functional.cross_entropy(logits, labels[0], ignore_index=IGNORE_INDEX, reduction="none"))
        return seen[0].sum()

    own_loss, setup.loss = setup.loss, record
    try:
        forward_loss(setup, shard_row(row, setup.mesh, setup.device))
    finally:
        setup.loss = own_loss
    losses = seen[0].detach().cpu()
    place = _places(row, setup)
    whole = torch.zeros(len(row.input_ids), dtype=losses.dtype)
    whole[place[place >= 0]] = losses[place >= 0]
    if setup.mesh.world > 1:
        dist.all_reduce(whole)
    return whole


def _places(row: Row, setup: TrainingSetup) -> Tensor:
    """(L,) for each token of this rank's shard its place in the row, -1 for padding: a row of places, sharded alike."""
    numbered = Row(
        input_ids=torch.arange(1, len(row.input_ids) + 1),
        labels=row.labels,
        position_ids=row.position_ids,
        cu_seqlens=row.cu_seqlens,
        sample_ids=row.sample_ids,
        num_targets=row.num_targets,
    )
    shard: Shard = shard_row(numbered, setup.mesh, torch.device("cpu"))
    return shard.input_ids[0] - 1
