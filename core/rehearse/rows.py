"""Rows of random tokens, each as long as a row can be: the data of a rehearsal. Called by core/rehearse/worker.py."""

from __future__ import annotations

import torch

from core.data.row import IGNORE_INDEX, Row
from core.parallel.mesh import Mesh


class LongestRows:
    """What the trainer takes for a BatchPlan; ranks that share a row get the same one."""

    def __init__(
        self, *, max_length: int, samples_per_row: int, rows_per_epoch: int, vocab_size: int, mesh: Mesh
    ) -> None:
        self.max_length = max_length
        self.samples_per_row = samples_per_row
        self.rows_per_epoch = rows_per_epoch
        self.vocab_size = vocab_size
        self.data_rank = mesh.data_rank

    def num_micro_batches(self, epoch: int = 0) -> int:
        return self.rows_per_epoch

    @property
    def longest_sample(self) -> int:
        return self.max_length

    def row(self, epoch: int, index: int) -> Row:
        generator = torch.Generator().manual_seed(1 + index + self.rows_per_epoch * (self.data_rank + 1000 * epoch))
        length, samples = self.max_length, self.samples_per_row
        ids = torch.randint(0, self.vocab_size, (samples * length,), generator=generator)
        labels = ids.roll(-1)
        labels[length - 1 :: length] = IGNORE_INDEX
        return Row(
            input_ids=ids,
            labels=labels,
            position_ids=torch.arange(length).repeat(samples),
            cu_seqlens=tuple(range(0, samples * length + 1, length)),
            sample_ids=tuple(range(samples)),
            num_targets=samples * (length - 1),
        )
