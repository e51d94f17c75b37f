"""Decoder linears in 4-bit NF4 by bitsandbytes, frozen. Called by core/model/placement.py for `qlora`.

A linear is quantised where it will stay, so that the device never holds the 16-bit model: one linear at a time.
"""

from __future__ import annotations

import torch
from torch import nn

from planner.errors import EnvironmentProblem


def quantise_linears(layers: nn.Module, *, double_quant: bool, dtype: torch.dtype, device: torch.device) -> None:
    """Replace every linear of decoder layers, or of one, that is not quantised yet.

    ``dtype`` is what a weight is dequantised to when it is used. Norms are left as they are.
    Raises:
        EnvironmentProblem: bitsandbytes is not installed.
    """
    bnb = import_bitsandbytes()
    for parent in layers.modules():
        for name, linear in list(parent.named_children()):
            if type(linear) is nn.Linear:
                setattr(parent, name, _quantised(bnb, linear, double_quant=double_quant, dtype=dtype, device=device))


def quantised_linears(model: nn.Module) -> list[nn.Module]:
    bnb = import_bitsandbytes()
    return [module for module in model.modules() if isinstance(module, bnb.nn.Linear4bit)]


def dequantised(linear: nn.Module) -> torch.Tensor:
    """(outputs, inputs) in the linear's compute dtype: the weight that it multiplies by."""
    bnb = import_bitsandbytes()
    weight = bnb.functional.dequantize_4bit(linear.weight.data, linear.weight.quant_state)
    return weight.to(linear.compute_dtype)


def import_bitsandbytes() -> object:
    try:
        import bitsandbytes
    except ImportError as error:
        raise EnvironmentProblem(
            "qlora needs the package bitsandbytes.", why=str(error), fix="pip install 'longfit[bnb]'"
        ) from error
    return bitsandbytes


def _quantised(
    bnb: object, linear: nn.Linear, *, double_quant: bool, dtype: torch.dtype, device: torch.device
) -> nn.Module:
    with torch.device("meta"):  # the weight comes from the linear
        new = bnb.nn.Linear4bit(
            linear.in_features, linear.out_features, bias=linear.bias is not None, compute_dtype=dtype,
            compress_statistics=double_quant, quant_type="nf4",
        )  # fmt: skip
    new.weight = bnb.nn.Params4bit(
        linear.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=double_quant
    ).to(device)
    if linear.bias is not None:
        new.bias = nn.Parameter(linear.bias.data.to(device), requires_grad=False)
    return new
