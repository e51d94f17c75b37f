"""From gradients to an update: the sum over ranks, the norm and its clipping, and AdamW in its forms. Called by the
trainer.

Gradients are sums, not means: each micro-batch's loss was already divided by the number of targets of the whole
window over all ranks, so ranks with many and with few targets weigh what they should.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from core.train.galore_adamw import GaloreAdamW, Projection
from core.train.wide_adamw import WideAdamW
from planner.errors import EnvironmentProblem
from planner.parts.optimizer import BUCKET_BYTES, EIGHT_BIT
from planner.types import MasterWeights, Optim

_CODE_BOOKS = ("qmap1", "qmap2")  # of bitsandbytes: constants, shared by all tensors


def build_optimizer(
    model: nn.Module,
    *,
    optim: Optim,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    epsilon: float,
    master_weights: MasterWeights = "none",
    projection: Projection | None = None,
    seed: int = 0,
    trained: Iterable[nn.Parameter] | None = None,
) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters, in the order of ``named_parameters``. Matrices (embeddings and LoRA A and B
    among them) decay; norms and biases, which are vectors, do not: the rule of transformers' Trainer.

    ``trained``: what is updated in place of the model's own parameters, this rank's rows of them.

    Raises: EnvironmentProblem when bitsandbytes is asked for and cannot be imported.
    """
    trainable = [p for p in model.parameters() if p.requires_grad] if trained is None else list(trained)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    settings: dict[str, Any] = {"lr": learning_rate, "betas": betas, "eps": epsilon}
    fused = optim == "adamw_torch_fused"
    if optim in EIGHT_BIT:
        return _bitsandbytes_class(optim)(groups, **settings)
    if projection is not None:
        return GaloreAdamW(_with_projected(groups, model), projection=projection, fused=fused, **settings)
    if master_weights != "none":
        return WideAdamW(groups, master=master_weights, fused=fused, seed=seed, **settings)
    return torch.optim.AdamW(groups, fused=fused or None, **settings)


def _with_projected(groups: list[dict[str, Any]], model: nn.Module) -> list[dict[str, Any]]:
    """The matrices of the decoder layers in a group of their own."""
    matrices = {id(p) for p in model.get_decoder().layers.parameters() if p.ndim == 2}  # type: ignore[operator, union-attr]
    parts = [
        {**group, "params": [p for p in group["params"] if (id(p) in matrices) == projected], "projected": projected}
        for group in groups
        for projected in (True, False)
    ]
    return [part for part in parts if part["params"]]


def _bitsandbytes_class(optim: Optim) -> type[torch.optim.Optimizer]:
    try:
        from bitsandbytes.optim import AdamW8bit, PagedAdamW8bit  # takes a second, and few runs need it
    except ImportError as error:
        raise EnvironmentProblem(
            f"optim {optim} needs the package bitsandbytes.", why=f"{type(error).__name__}: {error}",
            fix="pip install 'longfit[bnb]', or optim: adamw_torch_fused.",
        ) from error  # fmt: skip
    return PagedAdamW8bit if optim == "paged_adamw_8bit" else AdamW8bit


def state_tensors(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """What a checkpoint keeps of a parameter's state: every tensor but code books, and counts as int64 scalars."""
    state = optimizer.state.get(parameter, {})
    return {name: torch.as_tensor(value) for name, value in state.items() if name not in _CODE_BOOKS}


def restore_state(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, saved: Mapping[str, Tensor]) -> None:
    """Bit for bit, on the parameter's device, and never through ``load_state_dict``, which would cast."""
    init_state = getattr(optimizer, "init_state", None)
    if init_state is not None:  # bitsandbytes: buffers of its own making, code books and, paged, their pages
        init_state(*_place_of(optimizer, parameter))
        state = optimizer.state[parameter]
        for name, value in saved.items():
            if isinstance(state[name], Tensor):
                state[name].copy_(value)
            else:
                state[name] = int(value)
        return
    on_cpu = {"step"} if not optimizer.param_groups[0].get("fused") else set()
    for name, value in saved.items():
        is_count = value.dtype == torch.int64
        optimizer.state[parameter][name] = (
            int(value) if is_count else value if name in on_cpu else value.to(parameter.device)
        )


def _place_of(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter
) -> tuple[dict[str, Any], nn.Parameter, int, int]:
    """(group, parameter, index of the group, index in the group)."""
    for group_index, group in enumerate(optimizer.param_groups):
        for index, candidate in enumerate(group["params"]):
            if candidate is parameter:
                return group, parameter, group_index, index
    raise KeyError("the parameter is not one of the optimizer's")


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def reduce_gradients(parameters: Sequence[nn.Parameter], *, bucket_bytes: int = BUCKET_BYTES) -> torch.Tensor:
    """Sum every gradient over all ranks, in place, and return the norm of this rank's own part, a scalar.

    A missing gradient counts as zero, so that all ranks reduce the same buckets. The sum is formed in float32 or
    wider whatever the gradients' dtype.
    Collective: every rank of the world, with the same parameters in the same order.
    """
    squares: list[torch.Tensor] = []
    for bucket in _buckets([_gradient(parameter).view(-1) for parameter in parameters], bucket_bytes):
        flat = torch.cat([piece.to(_accumulation_dtype(piece)) for piece in bucket])
        squares.append(torch.linalg.vector_norm(flat).double() ** 2)
        dist.all_reduce(flat)
        for piece, summed in zip(bucket, flat.split([piece.numel() for piece in bucket]), strict=True):
            piece.copy_(summed)
    return torch.stack(squares).sum().sqrt()


def gradient_norm(parameters: Iterable[nn.Parameter], *, over_ranks: bool = False) -> torch.Tensor:
    """The 2-norm over all gradients, a scalar of float64. ``over_ranks``: each rank has other elements of them.

    Collective over all ranks with ``over_ranks``.
    """
    norms = [torch.linalg.vector_norm(p.grad, dtype=_accumulation_dtype(p)) for p in parameters if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack([norm.double() for norm in norms]))
    if not over_ranks:
        return norm
    squares = norm**2
    dist.all_reduce(squares)
    return squares.sqrt()


def clip_gradients(
    parameters: Iterable[nn.Parameter], norm: torch.Tensor, max_norm: float, *, divide_by: float = 1.0
) -> None:
    """Divide all gradients by ``divide_by`` (the loss scale), and bring a norm above ``max_norm`` down to it.

    ``norm`` is that after the division; ``max_norm`` 0 switches clipping off. No gradient is read back to the
    host. 1e-6 in the denominator is that of torch.nn.utils.clip_grad_norm_.
    """
    if max_norm <= 0 and divide_by == 1.0:
        return
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0) if max_norm > 0 else torch.ones_like(norm)
    factor = factor / divide_by
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def _accumulation_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif not parameter.grad.is_contiguous():
        parameter.grad = parameter.grad.contiguous()
    return parameter.grad


def _buckets(tensors: Sequence[Tensor], bucket_bytes: int) -> Iterator[list[Tensor]]:
    """Consecutive flat tensors of one accumulation dtype, up to ``bucket_bytes``; a larger one comes in pieces."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        itemsize = _accumulation_dtype(tensor).itemsize
        for piece in tensor.split(max(1, bucket_bytes // itemsize)):
            piece_bytes = piece.numel() * itemsize
            if bucket and (size + piece_bytes > bucket_bytes or bucket[0].dtype != piece.dtype):
                yield bucket
                bucket, size = [], 0
            bucket.append(piece)
            size += piece_bytes
    if bucket:
        yield bucket
