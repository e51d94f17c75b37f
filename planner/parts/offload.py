"""Layer inputs and attention outputs in host memory: what `checkpoint_offload` moves, and what it needs of the host."""

from __future__ import annotations

from planner.effects import Drop, Effect, TermSpec, Work
from planner.layer_policy import layer_policies, outputs_wait_on_host
from planner.optimization import PlanContext
from planner.parallel import padded_length
from planner.parts.adapters import fullest_moments
from planner.parts.recompute import norm_copies_input, num_inputs_at_end, num_recomputed_layers
from planner.types import DTYPE_BYTES, INSTANTS, Instant, ModelSpec, RunConfig


def num_offloaded_layers(config: RunConfig, model: ModelSpec, kept_layers: int) -> int:
    """Of the layers that are recomputed: the others have no input that waits alone."""
    return max(0, num_recomputed_layers(config, model) - kept_layers)


def offload_slot_bytes(config: RunConfig, model: ModelSpec) -> int:
    """The input of one layer for the longest micro-batch of a rank."""
    row = padded_length(config.per_device_train_batch_size * config.max_length, config.parallel)
    return DTYPE_BYTES[config.dtype] * model.hidden_size * (row // config.parallel.sequence)


def outputs_leave(config: RunConfig, model: ModelSpec) -> bool:
    """Whether kept attention outputs wait in host memory beside the inputs. With head groups a layer of the module
    engine has several, which stay."""
    in_one = config.engine == "layer" or config.optimization("fake_parallel") is None
    return in_one and outputs_wait_on_host(layer_policies(config, model))


def output_slot_bytes(config: RunConfig, model: ModelSpec) -> int:
    """The attention output of one layer, as offload_slot_bytes."""
    return offload_slot_bytes(config, model) // model.hidden_size * model.q_width


def offloaded_host_bytes(config: RunConfig, model: ModelSpec) -> int:
    """Pinned by one process."""
    setting = config.optimization("checkpoint_offload")
    if setting is None:
        return 0
    one = offload_slot_bytes(config, model)
    if outputs_leave(config, model):
        one += output_slot_bytes(config, model)
    return num_offloaded_layers(config, model, setting.as_dict()["kept_layers"]) * one


def offload_effect(ctx: PlanContext, *, kept_layers: int) -> Effect:
    """Of `engine: module`; planner/parts/layer_engine.py has the layer engine's."""
    s = ctx.sizes
    recomputed = num_recomputed_layers(ctx.config, ctx.model)
    offloaded = num_offloaded_layers(ctx.config, ctx.model, kept_layers)
    if offloaded == 0:
        return Effect()
    moved, words = s.c * s.d * s.T, f"{s.c}d * T: inputs"
    if outputs_leave(ctx.config, ctx.model):
        moved, words = moved + s.c * s.num_q, f"{s.c}(d + q) * T: inputs and attention outputs"
    return Effect(
        add=(*_inputs_on_gpu(ctx, recomputed, kept_layers), *slot_terms(ctx)),
        drop=(
            Drop(key="layer_inputs", formula="they wait in host memory"),
            Drop(key="layer_inputs.last", formula="they wait in host memory"),
        ),
        add_work=(copies("offload", ctx, offloaded * moved, f"{offloaded} layers * {words}"),),
    )


def slot_terms(ctx: PlanContext) -> tuple[TermSpec, ...]:
    """On a CPU the slots are in the process: they stay from the first forward on, and what comes back is a copy."""
    size = offloaded_host_bytes(ctx.config, ctx.model) if ctx.sizes.on_cpu else 0
    return (
        TermSpec(
            key="host_slots", part="checkpoints", instants=frozenset(INSTANTS) - {"load"}, bytes=size,
            formula=f"{size}: slots of what checkpoint_offload sends away, in this process on a CPU", basis="exact",
            source="core/offload/host_slots.py",
        ),
    )  # fmt: skip


def copies(name: str, ctx: PlanContext, moved: int, words: str) -> Work:
    """Out in forward, in again in backward: beside compute on a GPU, read and written in turn on a CPU."""
    if ctx.sizes.on_cpu:
        text = f"4 * {words} read and written, in forward and again in backward"
        return Work(key=f"memory.{name}", kind="memory", amount=4 * moved, formula=text)
    return Work(
        key=f"pcie.{name}", kind="pcie", amount=2 * moved, overlapped=True,
        formula=f"2 * {words} out in forward, in again in backward",
    )  # fmt: skip


def _inputs_on_gpu(ctx: PlanContext, recomputed: int, kept: int) -> tuple[TermSpec, ...]:
    """Those that are kept, and one that leaves or arrives while another layer is at work."""
    s = ctx.sizes
    moments = fullest_moments(ctx)
    if moments is None:
        gone = (norm_copies_input(ctx),) * 2  # unless a norm saves it, a layer's is gone when its MLP runs backward
    else:
        gone = moments[0].input_is_gone, moments[1].input_is_gone
    whole = s.N - recomputed

    def in_backward(is_gone: bool) -> int:
        """A layer that is recomputed has its own, unless it is gone, and that of the layer below on its way: the last
        one, or the one below a single one that is not recomputed. The last of several such has those that stay."""
        recomputing = max(kept, 2) - is_gone
        return recomputing if whole == 0 else max(kept, recomputing) if whole == 1 else kept

    spread: tuple[tuple[str, frozenset[Instant], int], ...] = (
        ("forward", frozenset({"layer_forward"}), kept + 1),
        ("loss", frozenset({"forward_loss", "loss_backward"}), kept),
        ("backward", frozenset({"layer_backward"}), in_backward(gone[0])),
        ("attention", frozenset({"attention_backward"}), in_backward(norm_copies_input(ctx))),
        ("end", frozenset({"backward_end"}), num_inputs_at_end(ctx.config, ctx.model) - gone[1]),
    )
    return tuple(
        TermSpec(
            key=f"layer_inputs.{when}", part="checkpoints", instants=instants,
            bytes=min(layers, recomputed) * s.c * s.d * s.T,
            formula=f"{min(layers, recomputed)} layers * {s.c}d * T: {kept} kept, one on its way; the others in host "
            "memory",
            source="core/offload/host_tensors.py",
        )
        for when, instants, layers in spread
    )  # fmt: skip
