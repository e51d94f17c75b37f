"""Bytes of the tensors that operators make, for as long as they live, and the highest sum in each phase of a run.

Works for real tensors and for fake ones, whose storages have a size and no memory. Called by core/verify/dry_run.py and
by tests/planner/engine_bytes.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Scratch = Callable[[tuple[Any, ...]], int]  # arguments of an operator -> bytes that its kernel holds beside them


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operators made and that are still alive, each once, whatever tensors share it.

    ``peaks``: the highest sum by the phase it occurred in; set ``phase`` when another begins. What a kernel allocates
    and frees by itself passes no dispatcher: ``scratch`` tells it by operator, as in "aten.logsumexp.default".
    """

    def __init__(self, existing: Iterable[Tensor] = (), *, scratch: Mapping[str, Scratch] | None = None) -> None:
        super().__init__()
        self.phase = ""
        self.peaks: dict[str, int] = {}
        self.live_bytes = 0
        self._scratch = scratch or {}
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in existing}  # not to be counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self.run(func, args, kwargs or {})
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self._count(tensor.untyped_storage())
        scratch = self._scratch.get(str(func))
        held = self.live_bytes + (0 if scratch is None else scratch(args))
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), held)
        return result

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return func(*args, **kwargs)

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._sizes:
            self._sizes[key] = size
            self.live_bytes += size
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.live_bytes -= self._sizes.pop(key)
