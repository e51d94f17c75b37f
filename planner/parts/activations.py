"""Tensors of the stock decoder layer (transformers modeling_{llama,qwen2,qwen3,mistral}), saved and in flight.

``layer.`` terms are those of the layer at work, ``other_layers.`` terms those of the remaining N-1, which are alive at
the same time unless a layer is recomputed. Everything here is for training of all parameters without recompute: the
optimizations declare what they change. Checked against real allocations of the engine, tensor by tensor, in
tests/planner/test_against_engine.py.
"""

from __future__ import annotations

from planner import gemma3
from planner.effects import TermSpec
from planner.parts.mlp_moments import output_norm_backward, without_adapters
from planner.parts.sizes import Sizes, windows_backward
from planner.types import Basis, Instant, ModelSpec, Part

SAVED: frozenset[Instant] = frozenset(
    {"layer_forward", "forward_loss", "loss_backward", "layer_backward", "attention_backward", "backward_end"}
)
MLP_BACKWARD: frozenset[Instant] = frozenset({"layer_backward", "backward_end"})
ATTENTION_BACKWARD: frozenset[Instant] = frozenset({"attention_backward"})
SAVED_BY_MLP = SAVED - ATTENTION_BACKWARD  # gone when attention runs backward
SAVED_BY_DOWN = SAVED_BY_MLP - MLP_BACKWARD  # gone at the MLP's fullest moment, the backward of gate * up
OTHERS: frozenset[Instant] = SAVED - {"backward_end"}


def both_layers(
    s: Sizes, piece: str, part: Part, instants: frozenset[Instant], size_bytes: int, formula: str, *,
    basis: Basis = "modelled", source: str = "",
) -> tuple[TermSpec, TermSpec]:  # fmt: skip
    """The same saved piece in the layer at work and, N-1 times, in the others."""
    return (
        TermSpec(
            key=f"layer.{piece}", part=part, instants=instants, bytes=size_bytes, formula=formula, basis=basis,
            source=source,
        ),
        TermSpec(
            key=f"other_layers.{piece}", part=part, instants=OTHERS, bytes=(s.N - 1) * size_bytes,
            formula=f"{s.N - 1} layers: {formula}", basis=basis, source=source,
        ),
    )  # fmt: skip


WITHOUT_GRAPH = {3: "silu(gate), up, product", 4: "gate, up, silu(gate), product"}  # of an MLP's forward


def mlp_pieces(s: Sizes) -> int:
    """How many tensors of the MLP's width are alive at once in a forward that saves nothing: a key of WITHOUT_GRAPH."""
    return 4 if s.fuses_gate_up else 3


def saved_terms(s: Sizes, model: ModelSpec) -> tuple[TermSpec, ...]:
    """What autograd keeps of one layer, and N-1 times of the others."""
    c, n = s.c, s.normed
    terms: list[TermSpec] = []

    def saved(piece: str, size_bytes: int, formula: str, instants: frozenset[Instant] = SAVED) -> None:
        terms.extend(both_layers(s, piece, "activations", instants, size_bytes, formula))

    if s.is_half:
        saved("norm1", (4 * s.d + 4) * s.T, "(4d + 4) * T: fp32 copy of the layer's input, and 1/rms")
    else:
        saved("alias.norm1", 4 * s.d * s.T, "4d * T: the layer's input")
    saved("norm2", (4 * s.d + 4) * s.T, "(4d + 4) * T: the MLP norm's input in fp32, and 1/rms", SAVED_BY_MLP)
    if s.sliced_qkv:
        saved(
            "attention.qkv", c * (s.num_q + 2 * s.num_kv + s.sliced_qkv),
            f"{c}(2q + 3kv) * T: q and k after RoPE, and what qkv_proj made, of which v is a slice",
        )  # fmt: skip
    else:
        saved("attention.qkv", c * (s.num_q + 2 * s.num_kv), f"{c}(q + 2kv) * T: q and k after RoPE, v")
    saved("attention.output", c * s.num_q + 4 * s.num_lse, f"({c}q + 4H) * T: attention output, log-sum-exp")
    if model.rotates_pairs:
        saved("attention.rotation", 2 * c * s.rotary * s.T, f"2 * {c} * {s.rotary} * T: cosine and sine, by pairs")
    if model.norms_outputs:
        text = "(4d + 4) * T: what {} made in fp32, and 1/rms"
        saved("post_norm1", (4 * s.d + 4) * s.T, text.format("attention"), SAVED_BY_MLP)
        saved("post_norm2", (4 * s.d + 4) * s.T, text.format("the MLP"), SAVED_BY_DOWN)
    if model.qk_norm:
        width, heads = s.q + s.kv, s.H + model.num_kv_heads
        saved("attention.qk_norm", (4 * width + 4 * heads) * s.T, "4(q + kv + H + K) * T: q and k in fp32 before norm")
        saved("trainable.attention.qk_norm", n * width * s.T, f"{n}(q + kv) * T: normed q and k, for their weights")
        if s.is_half:
            terms.append(qk_norm_backward(s, model))
    saved("mlp", 3 * c * s.f * s.T, f"3 * {c}f * T: gate, up, silu(gate)", SAVED_BY_MLP)
    saved("trainable.norm1", n * s.d * s.T, f"{n}d * T: normed input, for the norm's weight")
    saved("trainable.norm2", n * s.d * s.T, f"{n}d * T: normed input of the MLP, for the norm's weight", SAVED_BY_MLP)
    if model.norms_outputs:
        text = f"{n}d * T: what {{}} made, normed, for the norm's weight"
        saved("trainable.post_norm1", n * s.d * s.T, text.format("attention"), SAVED_BY_MLP)
        saved("trainable.post_norm2", n * s.d * s.T, text.format("the MLP"), SAVED_BY_DOWN)
    saved("trainable.attention.input", c * s.d * s.T, f"{c}d * T: input of q, k, v")
    saved("trainable.mlp_input", c * s.d * s.T, f"{c}d * T: input of gate and up", SAVED_BY_MLP)
    saved("trainable.mlp_product", c * s.f * s.T, f"{c}f * T: input of down", SAVED_BY_DOWN)
    return tuple(terms)


def qk_norm_backward(
    s: Sizes, model: ModelSpec, *, key: str = "attention_backward.qk_norm", of_adapters: int = 0
) -> TermSpec:  # fmt: skip
    """What the backward of q's norm, the last of the two, holds beyond the kernel's, which is over by then.
    ``of_adapters``: bytes a token that are there with them, less those that are gone."""
    kernel = sum(
        spec.bytes for spec in transient_terms(s) if spec.key == "attention_backward.gradients"
    ) + s.c * (2 * s.num_q + 2 * s.num_kv) + 4 * s.num_lse + 4 * (s.q + s.kv) * s.T  # fmt: skip
    # Gemma 3 projects q, k and v before it norms any, so that gradients of k and v wait for the norm of q
    waiting = 2 * s.c * s.kv if model.family == gemma3.TEXT else 0
    own = (24 * s.q + waiting + of_adapters) * s.T
    per_token = f"24q{f' + 2 * {s.c}kv' if waiting else ''}{f' {of_adapters:+}' if of_adapters else ''}"
    return TermSpec(
        key=key, part="activations", instants=ATTENTION_BACKWARD, bytes=max(0, own - kernel),
        formula=f"({per_token}) * T: five pieces of q in fp32, and its copy"
        f"{', gradients of k and v' if waiting else ''}"
        f"{', the gradient of what went into k and v, less their own copies of it' if of_adapters else ''}; less "
        f"{kernel} of the kernel, whose tensors are gone",
    )  # fmt: skip


def output_norm_terms(s: Sizes, model: ModelSpec, *, accumulates: bool) -> tuple[TermSpec, ...]:
    """Where all is trained: the norm of what the MLP made runs backward while down's input is there, and down's
    gradient, which other terms count already, is not."""
    if not model.norms_outputs:
        return ()
    beyond = (output_norm_backward(s) + s.c * s.f - without_adapters(s, fuses_swiglu=False)) * s.T
    to_come = 0 if accumulates else s.c * s.d * s.f
    return (
        TermSpec(
            key="layer_backward.post_norm", part="activations", instants=MLP_BACKWARD, bytes=max(0, beyond - to_come),
            formula=f"(24d + 4 - 2 * {s.c}f) * T: the last norm's backward in fp32 and down's input, beyond the MLP's"
            + (f"; less {to_come}, down's gradient" if to_come else ""),
        ),
    )  # fmt: skip


def transient_terms(s: Sizes) -> tuple[TermSpec, ...]:
    """What comes and goes while one layer is at work, beside what is saved."""
    c = s.c
    dq, dkv = s.num_q, s.num_kv
    expanded = 2 * c * dq if dkv < dq else 0  # the kernel makes dk and dv for every query head, then sums
    kernel = expanded + 4 * dq + 4 * s.num_lse
    batch = windows_backward(s, kernel)  # of a layer that slides
    earlier = 0 if s.last_layer_slides else c * s.d * s.T  # the layer after it, and what it kept, are gone by then
    kernel_text = f"{f'2 * {c}q + ' if expanded else ''}4q + 4H"
    held_text = f" + ({kernel_text}) * T"
    is_batch = batch - earlier > kernel
    if is_batch:
        held_text = f" + ({c}(4q + 4kv) + {kernel_text} + 4H) * {s.window_tokens}{f' - {c}d * T' if earlier else ''}"
    return (
        TermSpec(
            key="layer_forward.last", part="activations", instants=frozenset({"layer_forward"}),
            bytes=(16 if s.is_half else 8) * s.d * s.T,
            formula=f"{16 if s.is_half else 8}d * T: embeddings, and the last norm's input, products and output",
        ),
        TermSpec(
            key="layer_backward.mlp", part="activations", instants=MLP_BACKWARD, bytes=c * (s.d + 3 * s.f) * s.T,
            formula=f"{c}(d + 3f) * T: gradients of the residual, of gate * up, of up and of silu(gate)",
        ),
        TermSpec(
            key="attention_backward.residual", part="activations", instants=ATTENTION_BACKWARD, bytes=c * s.d * s.T,
            formula=f"{c}d * T: gradient of the residual",
        ),
        TermSpec(
            key="attention_backward.gradients", part="activations", instants=ATTENTION_BACKWARD,
            bytes=c * (2 * dq + 2 * dkv) + max(kernel, batch - earlier),
            formula=f"{c}(2q + 2kv) * T{held_text}: gradients of output, q, k, v"
            f"{', of k and v for each query head' if expanded else ''}; the kernel's fp32 dq"
            + ("; a batch of what layers that slide see of the chunk before" if is_batch else ""),
            source="torch flash_api.cpp, mha_bwd" + ("; core/attention/windows.py" if is_batch else ""),
        ),
    )  # fmt: skip


def evaluation_terms(s: Sizes, num_tokens: int) -> tuple[TermSpec, ...]:
    """One layer of an evaluation batch of ``num_tokens`` tokens on this rank, and what its loss gathers."""
    c, wide = s.c, mlp_pieces(s)
    return (
        TermSpec(
            key="evaluation.layer", part="activations", instants=frozenset({"evaluation_forward"}),
            bytes=c * (4 * s.d + wide * s.f) * num_tokens,
            formula=f"{c}(4d + {wide}f) * {num_tokens} tokens: embeddings, layer input, residual, normed input, "
            f"{WITHOUT_GRAPH[wide]}",
        ),
        TermSpec(
            key="evaluation.bucket", part="activations", instants=frozenset({"evaluation"}), bytes=c * s.d * num_tokens,
            formula=f"{c}d * {num_tokens} tokens: hidden states of one range of positions, at most the whole batch",
            source="core/train/position_loss.py",
        ),
    )  # fmt: skip
