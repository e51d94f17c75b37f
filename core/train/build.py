"""From a loaded model and a resolved config to a run that is ready to step. Called by the worker, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from core.attention.kernel import AttentionKernel, ReferenceKernel, select_kernel
from core.attention.sequence import LocalAttention
from core.loss.head_loss import StockLoss
from core.optimizations.evidence import Evidence, NotActive
from core.parallel.mesh import Mesh
from core.train.setup import TrainingSetup
from planner.errors import ConfigError
from planner.optimization import Optimization, Registry, instantiate
from planner.types import ModelSpec, RunConfig

# How far a kernel may be from the float32 reference on one small block, as a fraction of the largest value: a few
# roundings of the dtype (8, 11 and 24 bits of mantissa).
_PROBE_TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 1e-4}


def build_setup(
    config: RunConfig,
    spec: ModelSpec,
    model: nn.Module,
    mesh: Mesh,
    device: torch.device,
    emit: Callable[[str, Mapping[str, Any]], None],
    registry: Registry,
) -> TrainingSetup:
    """Apply every enabled optimization, in the order of their stages, to a model from ``load_model``.

    Raises:
        ConfigError: an optimization cannot be applied to this model or mesh, or the model's head has a bias.
        NotActive: the attention kernel of this device gives wrong numbers.
    """
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise ConfigError(
            f"The output head of {spec.name} has a bias.",
            why="The loss multiplies hidden states by the head's weight alone.",
            fix="Choose a model without a bias in its head.",
        )
    dtype = getattr(torch, config.dtype)
    kernel = select_kernel(device, dtype, spec.head_dim)
    emit("evidence", asdict(probe_kernel(kernel, spec, device, dtype)))
    setup = TrainingSetup(
        config=config, spec=spec, device=device, mesh=mesh, model=model, attention=LocalAttention(kernel),
        loss=StockLoss(), emit=emit,
    )  # fmt: skip
    for optimization in enabled_optimizations(config, registry):
        optimization.apply(setup)
    return setup


def verify_setup(setup: TrainingSetup, registry: Registry) -> tuple[Evidence, ...]:
    """Proof that each enabled optimization is active; call it after the first step, with its gradients formed.

    Raises:
        NotActive: the first one that is not, with the reason.
    """
    return tuple(optimization.verify(setup) for optimization in enabled_optimizations(setup.config, registry))


def enabled_optimizations(config: RunConfig, registry: Registry) -> list[Optimization]:
    """In the order in which they are applied."""
    enabled = [instantiate(setting, registry) for setting in config.optimizations]
    return sorted(enabled, key=lambda optimization: optimization.stage)


def probe_kernel(kernel: AttentionKernel, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> Evidence:
    """A tiny forward and backward with this model's head dim and group size against the float32 reference.

    Raises:
        NotActive: the largest error exceeds the tolerance of the dtype.
    """
    generator = torch.Generator().manual_seed(0)
    group_size = spec.num_attention_heads // spec.num_kv_heads
    q, k, v, dout = (
        torch.randn(1, heads, 33, spec.head_dim, generator=generator).to(device, dtype)
        for heads in (2 * group_size, 2, 2, 2 * group_size)
    )
    scale = spec.head_dim**-0.5

    def outputs(kernel: AttentionKernel, *inputs: torch.Tensor) -> list[torch.Tensor]:
        q, k, v, dout = inputs
        out, lse = kernel.forward(q, k, v, causal=True, scale=scale)
        return [out, *kernel.backward(dout, q, k, v, out, lse, causal=True, scale=scale)]

    expected = outputs(ReferenceKernel(), *(x.float() for x in (q, k, v, dout)))
    errors = [
        ((got.float() - want).abs().max() / want.abs().max()).item()
        for got, want in zip(outputs(kernel, q, k, v, dout), expected)
    ]
    tolerance = _PROBE_TOLERANCE[dtype]
    if not max(errors) <= tolerance:
        raise NotActive(
            f"attention kernel '{kernel.name}' is wrong on this device: relative error {max(errors):.2g} in {dtype}, "
            f"tolerance {tolerance:.2g}"
        )
    return Evidence(
        optimization="attention",
        claim=f"{kernel.name} (torch {torch.__version__}), forward and backward within {max(errors):.1g} of float32",
    )
