"""Held-out loss with the forward, the sharding, the loss and the length of training. Called by the trainer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from core.data.batches import BatchPlan
from core.parallel.layout import shard_row
from core.train.exchange import exchange
from core.train.forward import forward_loss
from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    loss: float  # mean over all targets of all ranks: a long document weighs what it holds
    num_targets: int


def evaluate(setup: TrainingSetup, batches: BatchPlan) -> Evaluation:
    """Without gradients and without dropout; the generators of training are not touched.

    Collective: every rank of the world.
    """
    loss_sum = torch.zeros((), dtype=torch.float64, device=setup.device)
    num_targets = 0
    setup.model.eval()
    try:
        with torch.no_grad():
            for index in range(batches.num_micro_batches()):
                shard = shard_row(batches.row(0, index), setup.mesh, setup.device)
                loss_sum += forward_loss(setup, shard)
                num_targets += shard.target_index.numel()
    finally:
        setup.model.train()
    ranks = exchange([loss_sum.item(), num_targets], setup.mesh, setup.device)
    targets = int(sum(rank[1] for rank in ranks))
    return Evaluation(loss=sum(rank[0] for rank in ranks) / max(1, targets), num_targets=targets)
