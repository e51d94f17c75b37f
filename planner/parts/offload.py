"""Layer inputs in host memory: what `checkpoint_offload` changes on the GPU, and what it needs of the host."""

from __future__ import annotations

from planner.effects import Effect, Scale, Work
from planner.optimization import PlanContext
from planner.parallel import padded_length
from planner.types import DTYPE_BYTES, ModelSpec, RunConfig


def num_offloaded_layers(model: ModelSpec, kept_layers: int) -> int:
    return max(0, model.num_layers - kept_layers)


def offload_slot_bytes(config: RunConfig, model: ModelSpec) -> int:
    """The input of one layer for the longest micro-batch of a rank."""
    row = padded_length(config.per_device_train_batch_size * config.max_length, config.parallel)
    return DTYPE_BYTES[config.dtype] * model.hidden_size * (row // config.parallel.sequence)


def offloaded_host_bytes(config: RunConfig, model: ModelSpec) -> int:
    """Pinned by one process."""
    setting = config.optimization("checkpoint_offload")
    if setting is None:
        return 0
    return num_offloaded_layers(model, setting.as_dict()["kept_layers"]) * offload_slot_bytes(config, model)


def offload_effect(ctx: PlanContext, *, kept_layers: int) -> Effect:
    s = ctx.sizes
    on_gpu = min(s.N, kept_layers + 1)
    moved = num_offloaded_layers(ctx.model, kept_layers) * s.c * s.d * s.T
    return Effect(
        scale=(
            Scale(
                key="layer_inputs", numerator=on_gpu, denominator=s.N,
                formula=f"{kept_layers} kept and one on its way, the others in host memory",
                source="core/offload/layer_inputs.py",
            ),
        ),
        add_work=(
            Work(
                key="pcie.offload", kind="pcie", amount=2 * moved, overlapped=True,
                formula=f"2 * {s.N - kept_layers} layers * {s.c}d * T: inputs out in forward, in again in backward",
            ),
        ),
    )  # fmt: skip
