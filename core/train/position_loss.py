"""Held-out loss by how much context a prediction had: what longer training really gained. Called by the evaluation.

position in its sample   0 .. 1,023   1,024 .. 2,047   2,048 .. 4,095   ...   (doubling)
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.loss.head_loss import HeadLoss

FIRST_EDGE_TOKENS = 1024


def position_edges(longest_sample: int) -> tuple[int, ...]:
    """Upper ends (exclusive) of the buckets: 1,024, 2,048, ... up to the first that holds the longest sample."""
    edges = [FIRST_EDGE_TOKENS]
    while edges[-1] < longest_sample:
        edges.append(2 * edges[-1])
    return tuple(edges)


class PositionLoss:
    """A HeadLoss around the run's own: the same sum, formed bucket by bucket and kept apart.

    Hidden states of a bucket are gathered before the loss, so all buckets together cost what one call would. Under
    packing and sequence parallelism positions are those within the sample, which every shard carries.
    """

    def __init__(self, loss: HeadLoss, edges: tuple[int, ...], device: torch.device) -> None:
        self._loss = loss
        self._edges = torch.tensor(edges, device=device)
        self.position_ids: Tensor | None = None  # (1, L) of the shard at hand, set before its forward
        self.sums = torch.zeros(len(edges), dtype=torch.float64, device=device)
        self.num_targets = [0] * len(edges)

    def __call__(
        self, hidden: Tensor, head_weight: Tensor, labels: Tensor, target_index: Tensor | None = None
    ) -> Tensor:
        assert self.position_ids is not None
        assert target_index is not None, "evaluation goes through core/train/forward.py, which knows the targets"
        buckets = torch.bucketize(self.position_ids[0, target_index], self._edges, right=True)
        counts = torch.bincount(buckets, minlength=len(self._edges)).tolist()
        by_bucket = target_index[buckets.argsort(stable=True)].split(counts)
        losses = []
        for bucket, index in enumerate(by_bucket):
            every = torch.arange(len(index), device=index.device)
            losses.append(self._loss(hidden[:, index], head_weight, labels[:, index], every))
            self.sums[bucket] += losses[-1]
            self.num_targets[bucket] += len(index)
        return torch.stack(losses).sum()
