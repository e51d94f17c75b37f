"""Host memory of exactly the size that is asked for, pinned for a GPU's copies. Used by the other files of
core/offload.

torch's own pinned allocator rounds every block up to a power of two; a plain block registered with the driver is as
long as it is. Pinning costs about 0.65 s a GiB, so it is done once, for the longest row of the run.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from planner.errors import EnvironmentProblem


class HostSlots:
    """``num_slots`` equal pieces of one block, each of ``slot_bytes``."""

    _is_pinned = False

    def __init__(self, num_slots: int, slot_bytes: int, *, device: torch.device) -> None:
        """
        Raises:
            EnvironmentProblem: the driver does not pin that much, as under a small ``ulimit -l``.
        """
        self.num_bytes = num_slots * slot_bytes
        self._slots = torch.empty(num_slots, slot_bytes, dtype=torch.uint8)
        self._is_pinned = device.type == "cuda" and self.num_bytes > 0
        if self._is_pinned:
            code = int(torch.cuda.cudart().cudaHostRegister(self._slots.data_ptr(), self.num_bytes, 0))
            if code:
                self._is_pinned = False
                raise EnvironmentProblem(
                    f"{self.num_bytes} bytes of host memory could not be pinned (CUDA error {code}).",
                    why="Tensors wait there for their turn, and only pinned memory is copied beside compute.",
                    fix="Free host memory, raise the limit of locked memory, or keep more on the GPU: raise "
                    "checkpoint_offload.kept_layers, or remove weight_streaming.",
                )

    def view(self, slot: int, like: Tensor) -> Tensor:
        """The beginning of a slot as a tensor of the shape, strides and dtype of ``like``, which leaves no gaps.

        Raises:
            ValueError: ``like`` is larger than a slot.
        """
        num_bytes = like.numel() * like.element_size()
        if num_bytes > self._slots.shape[1]:
            raise ValueError(f"a tensor of {num_bytes} bytes does not fit a slot of {self._slots.shape[1]}")
        return self._slots[slot, :num_bytes].view(like.dtype).as_strided(like.shape, like.stride())

    def free(self) -> None:
        """Unpin. No copy may be under way."""
        if self._is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self._slots.data_ptr())
            self._is_pinned = False
        self._slots = torch.empty(0, 0, dtype=torch.uint8)

    def __del__(self) -> None:
        if self._is_pinned and not sys.is_finalizing():  # the end of the process unpins, too
            self.free()
