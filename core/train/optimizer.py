"""From gradients to an update: the sum over ranks, the norm and its clipping, and AdamW. Called by the trainer.

Gradients are sums, not means: each micro-batch's loss was already divided by the number of targets of the whole
window over all ranks, so ranks with many and with few targets weigh what they should.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn

BUCKET_BYTES = 32 * 1024**2  # of the accumulation dtype; bounds what the reduction adds to the peak


def build_optimizer(
    model: nn.Module,
    *,
    optim: str,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    epsilon: float,
) -> torch.optim.AdamW:
    """AdamW over the trainable parameters, in the order of ``named_parameters``. Matrices (embeddings and LoRA A and B
    among them) decay; norms and biases, which are vectors, do not: the rule of transformers' Trainer."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=learning_rate,
        betas=betas,
        eps=epsilon,
        fused=True if optim == "adamw_torch_fused" else None,
    )


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
    for bucket in _buckets(parameters, bucket_bytes):
        flat = torch.cat([_gradient(p).flatten().to(_accumulation_dtype(p)) for p in bucket])
        squares.append(torch.linalg.vector_norm(flat).double() ** 2)
        dist.all_reduce(flat)
        for parameter, summed in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            _gradient(parameter).copy_(summed.view_as(parameter))
    return torch.stack(squares).sum().sqrt()


def gradient_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """The 2-norm over all gradients, a scalar of float32 or wider."""
    norms = [torch.linalg.vector_norm(p.grad, dtype=_accumulation_dtype(p)) for p in parameters if p.grad is not None]
    return torch.linalg.vector_norm(torch.stack([norm.double() for norm in norms]))


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


def _accumulation_dtype(parameter: nn.Parameter) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _buckets(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Consecutive parameters of one accumulation dtype, up to ``bucket_bytes`` (a larger parameter is alone)."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        dtype = _accumulation_dtype(parameter)
        parameter_bytes = parameter.numel() * dtype.itemsize
        if bucket and (size + parameter_bytes > bucket_bytes or _accumulation_dtype(bucket[0]) != dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter_bytes
    if bucket:
        yield bucket
