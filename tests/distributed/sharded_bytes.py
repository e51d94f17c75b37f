"""What a rank of fsdp allocates in a step, as torch dispatches it. Called by RankPool with (rank, world, ...)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from core.verify.live_bytes import LiveBytes
from planner.types import RunConfig
from tests.planner.engine_bytes import step_peaks

# by any of its names in torch 2.11 to 2.14; what the backend allocates on the way is not FSDP's
COLLECTIVES = ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single")


class ResizedBytes(LiveBytes):
    """FSDP2 lets go of a gathered tensor by resizing its storage to nothing, and of none by dropping it: sizes are read
    anew with every operator, of storages that an operator made or used."""

    is_paused = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._read()
        result = super().run(func, args, kwargs)
        if not ResizedBytes.is_paused:
            for tensor in tree_leaves((args, kwargs)):
                if type(tensor) is Tensor and tensor.device.type != "meta":
                    self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if ResizedBytes.is_paused:
            return
        if storage._cdata not in self._sizes:
            self._storages[storage._cdata] = weakref.ref(storage)
        super()._count(storage)

    def _forget(self, key: int) -> None:
        self._storages.pop(key, None)
        super()._forget(key)

    def _read(self) -> None:
        for key, reference in self._storages.items():
            storage = reference()
            if storage is not None and storage.nbytes() != self._sizes[key]:
                self.live_bytes += storage.nbytes() - self._sizes[key]
                self._sizes[key] = storage.nbytes()


def rank_peaks(rank: int, world: int, model_config: dict[str, Any], config: RunConfig) -> dict[str, int]:
    """``step_peaks`` of this rank, as on a GPU, without the copies that gloo makes."""
    present = [name for name in COLLECTIVES if hasattr(dist, name)]
    replaced = {name: _paused(getattr(dist, name)) for name in present}
    with patch.multiple(dist, **replaced):
        return step_peaks(model_config, config, as_cuda=True, counted=ResizedBytes)


def _paused(collective: Callable[..., Any]) -> Callable[..., Any]:
    def without_counting(*args: Any, **kwargs: Any) -> Any:
        ResizedBytes.is_paused = True
        try:
            return collective(*args, **kwargs)
        finally:
            ResizedBytes.is_paused = False

    return without_counting
