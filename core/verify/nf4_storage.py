"""A 4-bit linear of bitsandbytes whose weight has the size of an NF4 one and no memory; its code runs as it is.

Put in the place of core/model/nf4.py's quantisation by core/verify/cuda_device.py: a weight of bitsandbytes cannot be
made of a fake tensor. Source: bitsandbytes 0.50 functional.py, quantize_4bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from planner.parts.nf4 import BLOCK, SCALE_BLOCK


def stored_linear(bnb: Any, linear: nn.Linear, *, double_quant: bool, dtype: torch.dtype, device: torch.device) -> Any:
    """As core.model.nf4 makes of ``linear``."""
    with unset_fake_temporarily(), torch.device("meta"):
        new = bnb.nn.Linear4bit(
            linear.in_features, linear.out_features, bias=linear.bias is not None, compute_dtype=dtype,
            compress_statistics=double_quant, quant_type="nf4",
        )  # fmt: skip
    new.support_avx512bf16_for_cpu = False  # a CPU would pack the weight anew for an evaluation
    count = linear.weight.numel()
    blocks = -(-count // BLOCK)
    scales: dict[str, Any] = {"absmax": torch.empty(blocks, device=device)}
    if double_quant:
        second_level = bnb.functional.QuantState(
            absmax=torch.empty(-(-blocks // SCALE_BLOCK), device=device), blocksize=SCALE_BLOCK,
            code=torch.empty(256, device=device), dtype=torch.float32,
        )  # fmt: skip
        scales = {
            "absmax": torch.empty(blocks, dtype=torch.uint8, device=device),
            "offset": torch.empty((), device=device),
            "state2": second_level,
        }
    weight = nn.Parameter(torch.empty(-(-count // 2), 1, dtype=torch.uint8, device=device), requires_grad=False)
    weight.quant_state = bnb.functional.QuantState(
        shape=linear.weight.shape, blocksize=BLOCK, quant_type="nf4", dtype=dtype,
        code=torch.empty(16, device=device), **scales,
    )  # fmt: skip
    weight.compress_statistics, weight.quant_type = double_quant, "nf4"
    del new.weight
    new.weight = weight
    if linear.bias is not None:
        new.bias = nn.Parameter(linear.bias.data, requires_grad=False)
    return new


def dequantised_bytes(args: tuple[Any, ...]) -> int:
    """What bitsandbytes::gemm_4bit holds for as many rows as training has: the weight in 16 bit, for one product
    (backends/cuda/ops.py: dequantise, then linear)."""
    x, _, shape = args[:3]
    return int(shape[0] * shape[1] * x.element_size())
