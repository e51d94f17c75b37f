"""Which samples form which micro-batch, as a pure function of (epoch, index): the trainer asks, nothing is iterated.

    epoch order (shuffled by seed and epoch)    u0 u1 u2 u3 u4 u5 u6      u = a pack, or a sample without packing
    2 data ranks, 2 units per micro-batch       rank 0: [u0 u2] [u4 u6]
                                                rank 1: [u1 u3] [u5]

Every unit is used exactly once an epoch and every data rank gets the same number of micro-batches. When fewer units
are left than ranks, a rank gets an *empty row*: one real token, no target, no sample id. It runs through the model
like any other row (the collectives stay in step) and adds zero to a loss that is a sum over targets. A resumed run
continues at any index, because nothing depends on what was asked before.
"""

from __future__ import annotations

import numpy as np
import torch

from core.data.order import shuffled
from core.data.pack import Packs, pack_lengths
from core.data.row import IGNORE_INDEX, Row
from core.data.store import TokenStore


class BatchPlan:
    """Micro-batches of one data-parallel rank; all its sequence ranks ask for the same rows.

    Args:
        units_per_batch: packs (with packing) or samples that one micro-batch lays end to end:
            ``per_device_train_batch_size``.
        capacity: tokens of the longest row, ``max_length``; unused without packing.
        pack_length: tokens of a pack; 0: capacity. Samples longer than it are rows of their own.
        shuffle: False for evaluation: samples in the order of the store.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        units_per_batch: int = 1,
        packing: bool = False,
        capacity: int = 0,
        pack_length: int = 0,
        data_rank: int = 0,
        data_world: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if not 0 <= data_rank < data_world or units_per_batch < 1:
            raise ValueError(f"rank {data_rank} of {data_world} with {units_per_batch} units a batch is not a plan")
        self.store = store
        self.units_per_batch = units_per_batch
        self.packing = packing
        self.capacity = capacity
        self.pack_length = pack_length or capacity
        self.data_rank = data_rank
        self.data_world = data_world
        self.seed = seed
        self.shuffle = shuffle
        self._lengths = store.lengths
        self._order: tuple[int, np.ndarray, Packs | None] | None = None  # of the epoch asked for last

    def num_micro_batches(self, epoch: int = 0) -> int:
        """The same for every data rank and, since packing depends on lengths only, for every epoch."""
        order, _ = self._units(epoch)
        return -(-len(order) // (self.units_per_batch * self.data_world))

    def sample_ids(self, epoch: int, index: int) -> tuple[int, ...]:
        """Samples of micro-batch ``index`` of this rank, in row order; () for an empty row."""
        if not 0 <= index < self.num_micro_batches(epoch):
            raise IndexError(f"micro-batch {index} of {self.num_micro_batches(epoch)} in epoch {epoch}")
        order, packs = self._units(epoch)
        span = self.units_per_batch * self.data_world
        mine = order[index * span + self.data_rank : (index + 1) * span : self.data_world].tolist()
        return tuple(mine) if packs is None else tuple(sample for unit in mine for sample in packs[unit])

    def _units(self, epoch: int) -> tuple[np.ndarray, Packs | None]:
        """The units of all ranks in the order of this epoch; None for packs: a unit is a sample."""
        if self._order is None or self._order[0] != epoch:
            packs = None
            if self.packing:
                seed = f"{self.seed} {epoch}" if self.shuffle else 0
                packs = pack_lengths(self._lengths, self.pack_length, seed, longest=self.capacity)
            count = len(self.store) if packs is None else len(packs)
            order = shuffled(count, self.seed, epoch, "epoch") if self.shuffle else np.arange(count)
            self._order = (epoch, order, packs)
        return self._order[1:]

    def row(self, epoch: int, index: int) -> Row:
        """Micro-batch ``index`` of this rank as one row."""
        return build_row(self.store, self.sample_ids(epoch, index))

    @property
    def longest_sample(self) -> int:
        """Tokens of it."""
        return int(self._lengths.max())

    def longest(self, epoch: int = 0) -> int:
        """Index of this rank's micro-batch with the most tokens: what a preflight step should run."""
        totals = [
            sum(int(self._lengths[sample]) for sample in self.sample_ids(epoch, index))
            for index in range(self.num_micro_batches(epoch))
        ]
        return int(np.argmax(totals))


def build_row(store: TokenStore, sample_ids: tuple[int, ...]) -> Row:
    """Samples end to end; labels shifted within each sample, positions restarted at each. () gives an empty row."""
    if not sample_ids:
        return Row(
            input_ids=torch.tensor([int(store.tokens[0])], dtype=torch.int64),
            labels=torch.tensor([IGNORE_INDEX], dtype=torch.int64),
            position_ids=torch.zeros(1, dtype=torch.int64),
            cu_seqlens=(0, 1),
            sample_ids=(),
            num_targets=0,
        )
    samples = [store.sample(index) for index in sample_ids]
    lengths = [len(tokens) for tokens, _ in samples]
    ends = np.cumsum(lengths)
    tokens = np.concatenate([tokens for tokens, _ in samples]).astype(np.int64)
    is_target = np.concatenate([targets for _, targets in samples])
    labels = np.full(len(tokens), IGNORE_INDEX, dtype=np.int64)
    # Position t predicts t+1. The first token of a sample is never a target (the store clears it), so the last
    # position of each sample is left without a label and no prediction crosses from one sample into the next.
    labels[:-1] = np.where(is_target[1:], tokens[1:], IGNORE_INDEX)
    return Row(
        input_ids=torch.from_numpy(tokens),
        labels=torch.from_numpy(labels),
        position_ids=torch.from_numpy(np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])),
        cu_seqlens=(0, *ends.tolist()),
        sample_ids=sample_ids,
        num_targets=int(is_target.sum()),
    )
