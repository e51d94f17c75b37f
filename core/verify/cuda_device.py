"""A CPU that allocates as a CUDA device would, for tensors without memory: fake ones, of true shape.

Called by core/verify/dry_run.py. Tensors of integers are real, since their values decide shapes (which positions hold a
target, where samples end); all others are fake, and a number that is asked of one of them is 1. What the CUDA operators
do otherwise than those of the CPU is put in their place: flash attention (core/verify/flash_allocations.py), the loss
of a chunk (core/verify/loss_allocations.py), products of 16-bit operands that are written in float32, dropout's mask of
bytes, NF4 weights (core/verify/nf4_storage.py).

Fake tensors on device "cuda" itself would need a build of torch for CUDA: its autograd asks for a device guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

import core.layer.linears
import core.loss.chunked
import core.model.nf4
import core.offload.copies
import core.offload.host_tensors
import core.offload.streamed_tables
import core.offload.streamed_weights
from core.attention.kernel import wide_dtype
from core.verify import loss_allocations
from core.verify.host_copies import HostCopies, MetaSlots
from core.verify.live_bytes import LiveBytes
from core.verify.nf4_storage import dequantised_bytes, stored_linear

_REAL_DTYPES = (torch.int64, torch.int32, torch.bool)
_aten = torch.ops.aten


class DryBytes(LiveBytes):
    """LiveBytes that keeps integers real."""

    def __init__(self) -> None:
        super().__init__(scratch={"bitsandbytes.gemm_4bit.default": dequantised_bytes})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if tensors and not any(isinstance(x, FakeTensor) for x in tensors):
            return _for_real(func, args, kwargs)
        if func is _aten._local_scalar_dense.default:
            return 1.0
        result = func(*args, **kwargs)
        is_integer = isinstance(result, FakeTensor) and result.dtype in _REAL_DTYPES
        return _for_real(func, args, kwargs) if is_integer and not tensors else result


@contextmanager
def cuda_allocations() -> Iterator[DryBytes]:
    """Inside, every tensor that is made is counted and none but integers has memory."""
    replaced: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (torch.utils, "swap_tensors", _swap_tensors),
        (torch.nn.functional, "dropout", _dropout),
        (core.loss.chunked, "wide_matmul", _wide_matmul),
        (core.layer.linears, "wide_matmul", _wide_matmul),
        (core.loss.chunked, "cross_entropy_", loss_allocations.cross_entropy_),
        (core.model.nf4, "_quantised", stored_linear),
        (core.offload.host_tensors, "HostSlots", MetaSlots),
        (core.offload.streamed_weights, "HostSlots", MetaSlots),
        (core.offload.streamed_tables, "HostSlots", MetaSlots),
        (core.offload.copies, "InTurn", HostCopies),
    )
    with ExitStack() as stack:
        for module, name, function in replaced:
            stack.enter_context(patch.object(module, name, function))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield stack.enter_context(DryBytes())


def _for_real(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    with unset_fake_temporarily():
        return func(*args, **kwargs)


def _wide_matmul(a: Tensor, b: Tensor) -> Tensor:
    wide = wide_dtype(a.dtype)
    return a @ b if a.dtype == wide else torch.mm(a, b, out_dtype=wide)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p > 0 else x


def _swap_tensors(a: Tensor, b: Tensor) -> None:
    """torch's own refuses a tensor that somebody has a weak reference to, as FakeTensorMode has to each of its own;
    nn.Module.to swaps fake parameters (pytorch 2.13, nn/modules/module.py, _apply)."""
    a.__class__, b.__class__ = b.__class__, a.__class__
    a.__dict__, b.__dict__ = b.__dict__, a.__dict__
    torch._C._swap_tensor_impl(a, b)
