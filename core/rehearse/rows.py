"""Rows of random tokens, each as long as a row can be: the data of a rehearsal. Called by core/rehearse/worker.py."""

from __future__ import annotations

from itertools import accumulate

import torch

from core.data.row import IGNORE_INDEX, Row
from core.parallel.mesh import Mesh


class LongestRows:
    """What the trainer takes for a BatchPlan; ranks that share a row get the same one."""

    def __init__(
        self, *, max_length: int, samples_per_row: int, rows_per_epoch: int, vocab_size: int, mesh: Mesh,
        packed_epoch: int | None = None,
    ) -> None:  # fmt: skip
        """``packed_epoch``: the one whose last row holds two samples in place of each, as packed rows may. A kernel
        may take segments in another way than whole rows, and hold more."""
        self.max_length = max_length
        self.samples_per_row = samples_per_row
        self.rows_per_epoch = rows_per_epoch
        self.vocab_size = vocab_size
        self.data_rank = mesh.data_rank
        self.packed_epoch = packed_epoch

    def num_micro_batches(self, epoch: int = 0) -> int:
        return self.rows_per_epoch

    @property
    def longest_sample(self) -> int:
        return self.max_length

    def row(self, epoch: int, index: int) -> Row:
        generator = torch.Generator().manual_seed(1 + index + self.rows_per_epoch * (self.data_rank + 1000 * epoch))
        length, samples = self.max_length, self.samples_per_row
        ids = torch.randint(0, self.vocab_size, (samples * length,), generator=generator)
        is_packed = epoch == self.packed_epoch and index == self.rows_per_epoch - 1
        lengths = [length - length // 2, length // 2] * samples if is_packed else [length] * samples
        bounds = tuple(accumulate(lengths, initial=0))
        labels = ids.roll(-1)
        labels[[end - 1 for end in bounds[1:]]] = IGNORE_INDEX
        return Row(
            input_ids=ids,
            labels=labels,
            position_ids=torch.cat([torch.arange(part) for part in lengths]),
            cu_seqlens=bounds,
            sample_ids=tuple(range(len(lengths))),
            num_targets=len(ids) - len(lengths),
        )
