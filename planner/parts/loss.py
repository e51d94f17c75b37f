"""Head and cross entropy: the stock chain over whole-row logits, and the chunked form of `fused_loss`."""

from __future__ import annotations

from planner.effects import Drop, Effect, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.sizes import Sizes, evaluation_tokens


def stock_loss_terms(s: Sizes, num_evaluation_tokens: int) -> tuple[TermSpec, ...]:
    """Logits of every token in fp32 and log_softmax; in backward log_softmax's output and two gradients, 12 bytes a
    logit. The 16-bit logits are gone by then (core/loss/head_loss.py, StockLoss; transformers' Trainer drops them too).
    """
    return (
        TermSpec(
            key="logits.forward", part="logits", instants=frozenset({"forward_loss"}), bytes=8 * s.V * s.T,
            formula=f"8V * T = 8 * {s.V} * {s.T}: logits in fp32, log_softmax", source="core/loss/head_loss.py",
        ),
        TermSpec(
            key="logits.backward", part="logits", instants=frozenset({"loss_backward"}), bytes=12 * s.V * s.T,
            formula=f"12V * T = 12 * {s.V} * {s.T}: log_softmax, gradient of nll_loss, gradient of log_softmax, fp32",
            source="torch log_softmax backward; 31.62/47.19/78.32 GiB measured on one H200 at 8K/16K/32K",
        ),
        TermSpec(
            key="logits.evaluation", part="logits", instants=frozenset({"evaluation"}),
            bytes=8 * s.V * num_evaluation_tokens,
            formula=f"8V * {num_evaluation_tokens} tokens: logits in fp32, log_softmax",
            source="core/loss/head_loss.py",
        ),
        TermSpec(
            key="logits.hidden", part="logits", instants=frozenset({"forward_loss"}), bytes=s.c * s.d * s.T,
            formula=f"{s.c}d * T = {s.c} * {s.d} * {s.T}: hidden states, the head's input",
        ),
        TermSpec(
            key="logits.hidden_evaluation", part="logits", instants=frozenset({"evaluation"}),
            bytes=s.c * s.d * num_evaluation_tokens, formula=f"{s.c}d * {num_evaluation_tokens} tokens: hidden states",
        ),
        TermSpec(
            key="logits.trainable_hidden", part="logits", instants=frozenset({"loss_backward"}),
            bytes=s.c * s.d * s.T,
            formula=f"{s.c}d * T = {s.c} * {s.d} * {s.T}: the head's input, for its weight gradient", basis="exact",
        ),
    )  # fmt: skip


def stock_loss_work(s: Sizes) -> tuple[Work, ...]:
    return (
        Work(
            key="memory.logits", kind="memory", amount=48 * s.V * s.T,
            formula="48V * T: logits, fp32 copy, log_softmax and their gradients, each read and written",
        ),
    )  # fmt: skip


def chunked_loss_effect(ctx: PlanContext, *, chunk_tokens: int) -> Effect:
    """Logits of ``chunk_tokens`` tokens at a time; loss and gradient of the hidden states are formed there.

    Source: core/loss/chunked.py.
    """
    s = ctx.sizes
    chunk = min(chunk_tokens, s.T)
    liger = ctx.config.optimization("liger")
    in_norm = 0 if liger is not None and liger.as_dict()["rms_norm"] else 16  # fp32, or written over what came in
    through_norm = (in_norm + 2 * s.c) * s.d * s.T
    is_full = ctx.config.method == "full"
    head = s.V * s.d if is_full else 0  # its gradient: summed in fp32, then in the head's dtype
    normed = s.normed * s.d * s.T if is_full else 0  # counted with the last norm, gone before this
    per_chunk = 52 if s.on_cpu else 18  # logits are written, read twice, written over in 16 bit and read once more
    per_logit = 8 if s.on_cpu else 4  # the GPU's kernel writes the gradient over the logits
    gathered = s.c * s.d * chunk  # hidden states of the chunk's targets
    # then their gradient, or the head's
    at_products = (4 + (2 if s.on_cpu and s.is_half else 0)) * s.V * chunk + max(s.c * s.d * chunk, 4 * head)
    return Effect(
        add=(
            TermSpec(
                key="fused_loss.chunk", part="logits", instants=frozenset({"forward_loss"}),
                bytes=max(per_logit * s.V * chunk, at_products) + gathered,
                formula=f"{per_logit}V * chunk = {per_logit} * {s.V} * {chunk}: fp32 logits"
                + (", and what log-sum-exp holds beside them" if s.on_cpu else ", and their gradient in their place")
                + (
                    "; 4V * d: the head's gradient of one chunk"
                    if head
                    else f"; {s.c}d * chunk: gradient of its hidden states"
                )
                + (", if larger" if s.on_cpu else "")
                + f"; {s.c}d * chunk: hidden states of its targets",
                source="core/loss/chunked.py",
            ),
            TermSpec(
                key="fused_loss.chunk_evaluation", part="logits", instants=frozenset({"evaluation"}),
                bytes=per_logit * s.V * chunk + gathered,
                formula=f"({per_logit}V + {s.c}d) * chunk = ({per_logit} * {s.V} + {s.c} * {s.d}) * {chunk}",
                source="core/loss/chunked.py",
            ),
            TermSpec(
                key="fused_loss.hidden", part="logits", instants=frozenset({"forward_loss"}),
                bytes=2 * s.c * s.d * s.T,
                formula=f"2 * {s.c}d * T: hidden states of the row, and their gradient, formed with the loss",
                source="core/loss/chunked.py",
            ),
            TermSpec(
                key="fused_loss.hidden_evaluation", part="logits", instants=frozenset({"evaluation"}),
                bytes=s.c * s.d * evaluation_tokens(ctx), formula=f"{s.c}d * {evaluation_tokens(ctx)} tokens",
                source="core/loss/chunked.py",
            ),
            TermSpec(
                key="fused_loss.backward", part="activations", instants=frozenset({"loss_backward"}),
                bytes=s.c * head + max(through_norm - normed, 4 * head + s.c * s.d * s.T),
                formula=f"({in_norm} + 2 * {s.c})d * T: gradient of the hidden states on its way through the last norm"
                + (
                    f" - {s.normed}d * T: what the norm kept for its weight; or {s.c}d * T and 4V * d, the head's "
                    f"gradient in fp32, if larger; and {s.c}V * d, its cast"
                    if is_full
                    else ""
                ),
            ),
            *(_head_gradient(s) if head else ()),
        ),
        drop=(Drop(key="logits.*", formula="logits of the whole row never exist"),),
        drop_work=(Drop(key="memory.logits", formula="replaced by the chunks' passes"),),
        add_work=(
            Work(
                key="memory.fused_loss", kind="memory", amount=per_chunk * s.V * s.T,
                formula=f"{per_chunk}V * T: fp32 logits, log-sum-exp, softmax, cast, read and written chunk by chunk",
            ),
        ),
    )  # fmt: skip


def _head_gradient(s: Sizes) -> tuple[TermSpec, ...]:
    """The gradient of a trained head is summed in fp32 over the chunks."""
    return (
        TermSpec(
            key="fused_loss.head_gradient", part="gradients", instants=frozenset({"forward_loss"}),
            bytes=4 * s.V * s.d, formula=f"4V * d = 4 * {s.V} * {s.d}: the sum over the chunks, fp32",
            source="core/loss/chunked.py",
        ),
    )  # fmt: skip
