"""One micro-batch of one data-parallel replica: samples laid end to end in a single row, before sharding.

longfit never pads a batch: several rows, or several samples of a pack, are concatenated and told apart by cu_seqlens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

IGNORE_INDEX = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All tensors are (S,) int64 on the CPU, S = tokens of the row.

    ``labels[t]`` is the target of position t, that is token t+1 of the same sample, or IGNORE_INDEX: the shift is done
    here, on the whole row, so that no shard edge can lose a target. ``cu_seqlens`` = (0, end of sample 1, ..., S).
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    cu_seqlens: tuple[int, ...]
    sample_ids: tuple[int, ...]  # indices into the token store, in order
    num_targets: int
