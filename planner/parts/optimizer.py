"""Gradients, optimizer states and the temporaries of the step, for whatever is trained: base weights or adapters."""

from __future__ import annotations

from planner.effects import TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.activations import SAVED
from planner.parts.launches import TENSOR_STEP_NS
from planner.parts.tensors import Trained
from planner.time import STEP_TRAFFIC
from planner.types import INSTANTS, Instant, Optim, RunConfig

AFTER_LOAD = frozenset(INSTANTS) - {"load"}
AT_STEP: frozenset[Instant] = frozenset({"optimizer_step"})
# of `update: layer`: a layer is updated when its attention's backward has ended
LAYER_UPDATE: frozenset[Instant] = frozenset({"attention_backward"})
HEAD_UPDATE: frozenset[Instant] = frozenset({"loss_backward"})
BUCKET_BYTES = 32 * 1024**2  # core/train/optimizer.py: what one sum of gradients over the ranks holds, float32

# bitsandbytes optim/optimizer.py
MIN_8BIT_ELEMENTS = 4096  # smaller tensors keep float32 states
STATE_BLOCK = 256  # elements that share one float32 absmax
MIN_PAGED_ELEMENTS = 100_000
BITSANDBYTES = "bitsandbytes 0.50 optim/optimizer.py"
EIGHT_BIT: frozenset[Optim] = frozenset({"adamw_8bit", "paged_adamw_8bit"})


def is_8bit(config: RunConfig) -> bool:
    return config.optim in EIGHT_BIT


def is_paged(config: RunConfig) -> bool:
    return config.optim == "paged_adamw_8bit"


def trained_terms(ctx: PlanContext, what: str, trained: Trained) -> tuple[TermSpec, ...]:
    """``gradients.<what>.*``, ``optimizer.<what>``, ``optimizer.<what>.*``, ``step.<what>`` and ``step.<what>.*``."""
    in_backward = ctx.config.update == "layer"
    temporaries, text = _temporaries(ctx, trained)
    return (
        *(_gradients_of_a_layer(ctx, what, trained) if in_backward else _gradients(ctx, what, trained)),
        *(_updates_in_backward(ctx, what, trained) if in_backward else ()),
        *_states(ctx.config, what, trained),
        TermSpec(
            key=f"step.{what}", part="optimizer", instants=AT_STEP, bytes=temporaries, formula=text,
            source="core/train/optimizer.py",
        ),
    )  # fmt: skip


def _gradients(ctx: PlanContext, what: str, trained: Trained) -> tuple[TermSpec, ...]:
    element, count = trained.element_bytes, trained.num_parameters
    accumulates = ctx.config.gradient_accumulation_steps > 1
    whole = TermSpec(
        key=f"gradients.{what}.all", part="gradients", instants=AT_STEP | (SAVED if accumulates else frozenset()),
        bytes=trained.num_bytes,
        formula=f"{element} * {count}" + (": alive from the first micro-batch to the step" if accumulates else ""),
        basis="exact", source="zero_grad(set_to_none=True) frees them after the step",
    )  # fmt: skip
    if accumulates:
        waits = trained.early_parameters if ctx.model.tie_word_embeddings else 0
        shared = TermSpec(
            key=f"gradients.{what}.shared", part="gradients",
            instants=frozenset({"layer_backward", "attention_backward", "backward_end"}), bytes=element * waits,
            formula=f"{element} * {waits}: the tied head's of this micro-batch, which waits for the embeddings'",
            basis="exact",
        )  # fmt: skip
        return whole, shared
    return (
        whole,
        TermSpec(
            key=f"gradients.{what}.end", part="gradients", instants=frozenset({"backward_end"}),
            bytes=element * (count - trained.late_parameters),
            formula=f"{element} * ({count} - {trained.late_parameters} still to come)", basis="exact",
        ),
        TermSpec(
            key=f"gradients.{what}.head", part="gradients",
            instants=frozenset({"layer_backward", "attention_backward"}),
            bytes=element * (trained.early_parameters + trained.down_parameters),
            formula=f"{element} * ({trained.early_parameters} + {trained.down_parameters}): the head's, down_proj's",
            basis="exact",
        ),
        TermSpec(
            key=f"gradients.{what}.upper", part="gradients", instants=frozenset({"attention_backward"}),
            bytes=element * (trained.upper_parameters - trained.down_parameters),
            formula=f"{element} * {trained.upper_parameters - trained.down_parameters}: gate, up and o_proj's",
            basis="exact",
        ),
    )  # fmt: skip


def _gradients_of_a_layer(ctx: PlanContext, what: str, trained: Trained) -> tuple[TermSpec, ...]:
    """Each layer is updated as soon as its backward is done; tied embeddings wait for their second contribution."""
    element = trained.element_bytes
    waits = trained.early_parameters if ctx.model.tie_word_embeddings else 0
    tied = f"; {element} * {waits}: of the tied head, which waits for the embeddings'" if waits else ""
    return (
        TermSpec(
            key=f"gradients.{what}.down", part="gradients", instants=frozenset({"layer_backward", "backward_end"}),
            bytes=element * (trained.down_parameters + waits),
            formula=f"{element} * {trained.down_parameters}: down_proj's of the layer at work" + tied,
        ),
        TermSpec(
            key=f"gradients.{what}.upper", part="gradients", instants=LAYER_UPDATE,
            bytes=element * (trained.upper_parameters + waits),
            formula=f"{element} * {trained.upper_parameters}: the MLP's and o_proj's of the layer at work" + tied,
        ),
        TermSpec(
            key=f"gradients.{what}.last", part="gradients", instants=AT_STEP, bytes=element * trained.largest,
            formula=f"{element} * {trained.largest}: of the embeddings, the last to be updated",
        ),
    )  # fmt: skip


def _updates_in_backward(ctx: PlanContext, what: str, trained: Trained) -> tuple[TermSpec, ...]:
    """What the updates of a layer and of a head of its own hold for a moment. That of the embeddings is the step's."""
    head = 0 if ctx.model.tie_word_embeddings else trained.early_parameters
    of_head, text = update_temporaries(ctx, trained, largest=head, updated=head)
    if trained.element_bytes < 4 and ctx.config.optimization("fused_loss") is not None:
        of_head, text = max(0, of_head - 4 * head), f"{text} - 4 * {head}: the loss's float32 sum is gone"
    of_layer = max(
        update_temporaries(ctx, trained, largest=trained.layer_largest, updated=trained.layer_parameters),
        exchange_temporaries(ctx, trained, summed=trained.layer_parameters),
    )
    return (
        *layer_updates(ctx, what, trained, *of_layer),
        TermSpec(
            key=f"step.{what}.head", part="optimizer", instants=HEAD_UPDATE, bytes=of_head, formula=text,
            source="core/train/layer_update.py",
        ),
    )  # fmt: skip


def layer_updates(
    ctx: PlanContext, what: str, trained: Trained, temporaries: int, text: str
) -> tuple[TermSpec, TermSpec]:
    """``step.<what>.layer`` and ``step.<what>.lowest``: a layer's update, of ``temporaries`` bytes, where it may be the
    fullest moment. Activations that the instant counts are gone by then: at least these, unless only parts of them ever
    were there at once."""
    s, element = ctx.sizes, trained.element_bytes
    attention = 0 if ctx.config.optimization("fake_parallel") else s.c * (4 * s.q + 4 * s.kv + s.d) * s.T
    mlp = 0 if ctx.config.optimization("tiled_mlp") else 6 * s.c * s.f * s.T
    after_attention = element * (trained.layer_parameters - trained.upper_parameters)
    after_down = element * (trained.layer_parameters - trained.down_parameters)
    return (
        TermSpec(
            key=f"step.{what}.layer", part="optimizer", instants=LAYER_UPDATE,
            bytes=max(0, after_attention + temporaries - attention),
            formula=f"{after_attention} of gradients + {text} - {attention}: activations of attention, gone by then",
            source="core/train/layer_update.py",
        ),
        TermSpec(
            key=f"step.{what}.lowest", part="optimizer", instants=frozenset({"backward_end"}),
            bytes=max(0, after_down + temporaries - mlp),
            formula=f"{after_down} of gradients + {text} - {mlp}: activations of the MLP, gone by then",
            source="core/train/layer_update.py",
        ),
    )  # fmt: skip


def _states(config: RunConfig, what: str, trained: Trained) -> tuple[TermSpec, ...]:
    """exp_avg and exp_avg_sq, in the parameters' dtype, in float32, or in 8 bits; and float32 master weights."""
    count = trained.num_parameters
    if is_8bit(config):
        return _8bit_states(what, trained, paged=is_paged(config))
    wide = config.master_weights != "none" and trained.element_bytes < 4
    element = 4 if wide else trained.element_bytes
    states = TermSpec(
        key=f"optimizer.{what}", part="optimizer", instants=AFTER_LOAD, bytes=2 * element * count,
        formula=f"2 * {element} * {count}: exp_avg and exp_avg_sq" + (" in float32" if wide else ""), basis="exact",
        source="core/train/wide_adamw.py" if wide else "torch.optim.AdamW",
    )  # fmt: skip
    if not wide or config.master_weights != "fp32":
        return (states,)
    master = TermSpec(
        key=f"optimizer.{what}.master", part="optimizer", instants=AFTER_LOAD, bytes=4 * count,
        formula=f"4 * {count}: a float32 copy of what is trained", basis="exact", source="core/train/wide_adamw.py",
    )  # fmt: skip
    return states, master


def _8bit_states(what: str, trained: Trained, *, paged: bool) -> tuple[TermSpec, ...]:
    """One byte a state; float32 scales of each block, and float32 states of small tensors."""
    blockwise = [group for group in trained.groups if group.elements >= MIN_8BIT_ELEMENTS]
    pages = [group for group in blockwise if paged and group.elements >= MIN_PAGED_ELEMENTS]
    in_pages = sum(2 * group.elements * group.count for group in pages)
    in_bytes = sum(2 * group.elements * group.count for group in blockwise) - in_pages
    scales = sum(2 * 4 * -(-group.elements // STATE_BLOCK) * group.count for group in blockwise)
    small = sum(2 * 4 * group.elements * group.count for group in trained.groups if group not in blockwise)
    return (
        TermSpec(
            key=f"optimizer.{what}", part="optimizer", instants=AFTER_LOAD, bytes=in_bytes + scales + small,
            formula=f"{in_bytes} in 8 bits + {scales} of float32 scales, one for {STATE_BLOCK} elements + {small} of "
            f"float32 states of tensors below {MIN_8BIT_ELEMENTS} elements",
            basis="exact", source=BITSANDBYTES,
        ),
        TermSpec(
            key=f"optimizer.{what}.paged", part="optimizer", instants=AT_STEP, bytes=in_pages,
            formula=f"2 * {in_pages // 2}: states in CUDA managed memory, on the GPU while they are updated, in host "
            "memory when room is needed",
            source=BITSANDBYTES,
        ),
    )  # fmt: skip


def _temporaries(ctx: PlanContext, trained: Trained) -> tuple[int, str]:
    """The widest of what follows one after the other: the embeddings' gradient, the sum over ranks, the update. The
    first two are FSDP's own business (parts/fsdp.py)."""
    update = update_temporaries(ctx, trained, largest=trained.largest, updated=_updated_last(ctx, trained))
    if ctx.config.optimization("fsdp") is not None and ctx.config.parallel.world > 1:
        return update
    return max(
        update,
        exchange_temporaries(ctx, trained),
        embedding_temporaries(ctx, trained),
    )


def _updated_last(ctx: PlanContext, trained: Trained) -> int:
    """Parameters of the last update of a step: all of them, or the embeddings alone."""
    return trained.largest if ctx.config.update == "layer" else trained.num_parameters


def embedding_temporaries(ctx: PlanContext, trained: Trained) -> tuple[int, str]:
    """The end of a backward. A dense gradient is formed from that of the embeddings' output, beside the one that is
    there; tied embeddings have that of the head too, which waited for it, and then the sum of both (torch autograd,
    InputBuffer and AccumulateGrad)."""
    s, tied, accumulates = ctx.sizes, ctx.model.tie_word_embeddings, ctx.config.gradient_accumulation_steps > 1
    size = trained.element_bytes * trained.early_parameters  # 0 where the embeddings are frozen
    copies, output = (2 if tied else 0) + accumulates, s.c * s.d * s.T if size else 0
    return max(
        (copies * size, f"{copies} * {size}: gradients of the embeddings, before they are one"),
        ((copies - tied) * size + output, f"{copies - tied} * {size} + {s.c} * d * T: and that of their output"),
    )


def exchange_temporaries(ctx: PlanContext, trained: Trained, *, summed: int | None = None) -> tuple[int, str]:
    """``summed``: parameters whose gradients are summed over the ranks in one go; None: of all that is trained."""
    if ctx.config.parallel.world == 1 or ctx.config.optimization("fsdp"):  # FSDP sums on its own (parts/fsdp.py)
        return 0, ""
    copies = 2 if trained.element_bytes < 4 else 1
    bucket = min(BUCKET_BYTES, 4 * (trained.num_parameters if summed is None else summed))
    text = f"{copies} * {bucket}: a bucket of gradients in float32, to be summed over the ranks"
    return copies * bucket, text + (", cast and laid end to end" if copies == 2 else "")


def update_temporaries(ctx: PlanContext, trained: Trained, *, largest: int, updated: int) -> tuple[int, str]:
    """Of ``updated`` parameters in one call of the optimizer, whose largest tensor has ``largest``."""
    config, on_cpu, element = ctx.config, ctx.cluster.gpu.kind == "cpu", trained.element_bytes
    if is_8bit(config):
        # the CPU's update dequantises both states of a tensor; the CUDA kernel works block by block
        return (4 * 4 * largest, f"4 * 4 * {largest}: states of the largest tensor in float32") if on_cpu else (
            0, "the 8-bit kernel updates in place"
        )  # fmt: skip
    if config.master_weights != "none" and element < 4:
        copies = (1 if config.master_weights == "fp32" else 2) + (0 if config.optim == "adamw_torch_fused" else 2)
        return copies * 4 * largest, f"{copies} * 4 * {largest}: the largest tensor in float32, one after another"
    if config.optim == "adamw_torch_fused":
        return 0, "the fused kernel updates in place"
    if on_cpu:  # torch uses the foreach form on accelerators only, for all tensors at once
        return 2 * element * largest, f"2 * {element * largest}: square root and quotient of the largest tensor"
    return element * updated, f"{element * updated}: one more copy of what is updated (foreach square roots)"


def trained_work(ctx: PlanContext, what: str, trained: Trained) -> tuple[Work, ...]:
    """``update.<what>.*``: what a step costs beyond the traffic of gradients and states that every step has."""
    config, world, work = ctx.config, ctx.config.parallel.world, []
    if config.update == "layer":  # no gradient is left for the step to reduce and read (planner/time.py)
        work += [
            Work(
                key=f"update.{what}.memory", kind="memory", amount=STEP_TRAFFIC * trained.num_bytes,
                formula=f"{STEP_TRAFFIC} * {trained.num_bytes} bytes of gradients, layer by layer",
            ),
            Work(
                key=f"update.{what}.reduction", kind="link", amount=2 * trained.num_bytes * (world - 1) // world,
                formula=f"2 * {trained.num_bytes} * ({world} - 1) / {world}: gradients summed layer by layer",
            ),
        ]  # fmt: skip
    steps, count = config.gradient_accumulation_steps, sum(group.count for group in trained.groups)
    work.append(
        Work(
            key=f"update.{what}.tensors", kind="overhead", amount=TENSOR_STEP_NS * count // steps,
            formula=f"{TENSOR_STEP_NS} ns * {count} tensors, once a step of {steps} micro-batches",
        )
    )  # fmt: skip
    if is_paged(config):
        pages = sum(2 * g.elements * g.count for g in trained.groups if g.elements >= MIN_PAGED_ELEMENTS)
        work.append(
            Work(
                key=f"update.{what}.pages", kind="pcie", amount=2 * pages // steps,
                formula=f"2 * {pages} bytes of paged states, in and out once a step of {steps} micro-batches",
            )
        )  # fmt: skip
    return tuple(work)
