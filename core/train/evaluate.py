"""Held-out loss with the forward, the sharding, the loss and the length of training. Called by the trainer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from core.data.batches import BatchPlan
from core.parallel.layout import shard_row
from core.train.exchange import exchange
from core.train.forward import forward_loss
from core.train.position_loss import PositionLoss, position_edges
from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Predictions at positions begin <= position < end of their sample."""

    begin: int
    end: int
    loss: float  # mean over its targets
    num_targets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    loss: float  # mean over all targets of all ranks: a long document weighs what it holds
    num_targets: int
    by_position: tuple[Bucket, ...]  # buckets with targets, ascending


def evaluate(setup: TrainingSetup, batches: BatchPlan) -> Evaluation:
    """Without gradients and without dropout; the generators of training are not touched.

    Collective: every rank of the world.
    """
    edges = position_edges(batches.longest_sample)
    own_loss, losses = setup.loss, PositionLoss(setup.loss, edges, setup.device)
    setup.model.eval()
    setup.loss = losses
    try:
        with torch.no_grad():
            for index in range(batches.num_micro_batches()):
                shard = shard_row(batches.row(0, index), setup.mesh, setup.device)
                losses.position_ids = shard.position_ids
                forward_loss(setup, shard)
    finally:
        setup.loss = own_loss
        setup.model.train()
    ranks = exchange([*losses.sums.tolist(), *losses.num_targets], setup.mesh, setup.device)
    totals = [sum(values) for values in zip(*ranks)]
    sums, counts = totals[: len(edges)], [int(count) for count in totals[len(edges) :]]
    begins = (0, *edges[:-1])
    return Evaluation(
        loss=sum(sums) / max(1, sum(counts)),
        num_targets=sum(counts),
        by_position=tuple(
            Bucket(begin=begin, end=end, loss=total / count, num_targets=count)
            for begin, end, total, count in zip(begins, edges, sums, counts)
            if count
        ),
    )
