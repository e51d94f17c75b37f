"""Layer inputs in host memory: what `checkpoint_offload` changes on the GPU, and what it needs of the host."""

from __future__ import annotations

from planner.effects import Effect, Scale, Work
from planner.layer_policy import layer_policies, outputs_wait_on_host
from planner.optimization import PlanContext
from planner.parallel import padded_length
from planner.parts.recompute import num_recomputed_layers
from planner.types import DTYPE_BYTES, ModelSpec, RunConfig


def num_offloaded_layers(config: RunConfig, model: ModelSpec, kept_layers: int) -> int:
    """Of the layers that are recomputed: the others have no input that waits alone."""
    return max(0, num_recomputed_layers(config, model) - kept_layers)


def offload_slot_bytes(config: RunConfig, model: ModelSpec) -> int:
    """The input of one layer for the longest micro-batch of a rank."""
    row = padded_length(config.per_device_train_batch_size * config.max_length, config.parallel)
    return DTYPE_BYTES[config.dtype] * model.hidden_size * (row // config.parallel.sequence)


def offloaded_host_bytes(config: RunConfig, model: ModelSpec) -> int:
    """Pinned by one process."""
    setting = config.optimization("checkpoint_offload")
    if setting is None:
        return 0
    if config.engine == "layer":
        policies, slot = layer_policies(config, model), offload_slot_bytes(config, model)
        outputs = slot // model.hidden_size * model.q_width if outputs_wait_on_host(policies) else 0
        return sum(policy.offloads for policy in policies) * (slot + outputs)
    return num_offloaded_layers(config, model, setting.as_dict()["kept_layers"]) * offload_slot_bytes(config, model)


def offload_effect(ctx: PlanContext, *, kept_layers: int) -> Effect:
    s = ctx.sizes
    recomputed = num_recomputed_layers(ctx.config, ctx.model)
    offloaded = num_offloaded_layers(ctx.config, ctx.model, kept_layers)
    if offloaded == 0:
        return Effect()
    return Effect(
        scale=(
            Scale(
                key="layer_inputs", numerator=min(recomputed, kept_layers + 1), denominator=recomputed,
                formula=f"{kept_layers} kept and one on its way, the others in host memory",
                source="core/offload/layer_inputs.py",
            ),
        ),
        add_work=(
            Work(
                key="pcie.offload", kind="pcie", amount=2 * offloaded * s.c * s.d * s.T, overlapped=True,
                formula=f"2 * {offloaded} layers * {s.c}d * T: inputs out in forward, in again in backward",
            ),
        ),
    )  # fmt: skip
