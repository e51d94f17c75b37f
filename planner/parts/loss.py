"""Head and cross entropy: the stock chain over whole-row logits, and the chunked form of `fused_loss`."""

from __future__ import annotations

from planner.effects import Drop, Effect, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.sizes import Sizes, sizes_of


def stock_loss_terms(s: Sizes, *, trains_head: bool) -> tuple[TermSpec, ...]:
    """Logits of every token, their fp32 copy, log_softmax and its gradient (transformers ForCausalLMLoss).

    In backward the 16-bit logits and their fp32 copy are gone: log_softmax's output, the gradient of nll_loss with
    respect to it and the gradient of log_softmax are alive together, 4 bytes a logit each.
    """
    logits = s.V * s.T
    copy = 4 if s.is_half else 0  # .float() of fp32 logits is no copy
    terms = [
        TermSpec(
            key="logits.forward", part="logits", instants=frozenset({"forward_loss", "evaluation"}),
            bytes=(s.c + copy + 4) * logits,
            formula=f"{s.c + copy + 4}V * T = {s.c + copy + 4} * {s.V} * {s.T}: logits, "
            f"{'fp32 copy, ' if copy else ''}log_softmax",
            source="transformers loss_utils.ForCausalLMLoss",
        ),
        TermSpec(
            key="logits.backward", part="logits", instants=frozenset({"loss_backward"}), bytes=12 * logits,
            formula=f"12V * T = 12 * {s.V} * {s.T}: log_softmax, gradient of nll_loss, gradient of log_softmax, fp32",
            source="torch log_softmax backward",
        ),
    ]  # fmt: skip
    if trains_head:
        terms.append(
            TermSpec(
                key="logits.trainable_hidden", part="logits",
                instants=frozenset({"forward_loss", "loss_backward"}), bytes=s.c * s.d * s.T,
                formula=f"{s.c}d * T = {s.c} * {s.d} * {s.T}: the head's input, for its weight gradient", basis="exact",
            )
        )  # fmt: skip
    return tuple(terms)


def stock_loss_work(s: Sizes) -> tuple[Work, ...]:
    copy = 4 if s.is_half else 0
    return (
        Work(
            key="memory.logits", kind="memory", amount=(4 * s.c + 3 * copy + 36) * s.V * s.T,
            formula="each pass over the logits of the row, read and written",
        ),
    )  # fmt: skip


def chunked_loss_effect(ctx: PlanContext, *, chunk_tokens: int) -> Effect:
    """Logits of ``chunk_tokens`` tokens at a time; loss and gradient of the hidden states are formed there.

    Source: core/loss/chunked.py.
    """
    s = sizes_of(ctx)
    chunk = min(chunk_tokens, s.T)
    copy = 4 if s.is_half else 0
    per_logit = s.c + copy + 4 + s.c  # logits, fp32 copy, softmax gradient, its cast for the product with the head
    return Effect(
        add=(
            TermSpec(
                key="fused_loss.chunk", part="logits", instants=frozenset({"forward_loss", "evaluation"}),
                bytes=per_logit * s.V * chunk,
                formula=f"{per_logit}V * chunk = {per_logit} * {s.V} * {chunk}", source="core/loss/chunked.py",
            ),
            TermSpec(
                key="fused_loss.hidden_gradient", part="logits",
                instants=frozenset({"forward_loss", "loss_backward"}), bytes=2 * s.c * s.d * s.T,
                formula=f"2 * {s.c}d * T = 2 * {s.c} * {s.d} * {s.T}: hidden states and their gradient",
                source="core/loss/chunked.py",
            ),
        ),
        drop=(Drop(key="logits.*", formula="logits of the whole row never exist"),),
        drop_work=(Drop(key="memory.logits", formula="replaced by the chunks' passes"),),
        add_work=(
            Work(
                key="memory.fused_loss", kind="memory", amount=(3 * s.c + 3 * copy + 20) * s.V * s.T,
                formula="each pass over the logits, chunk by chunk",
            ),
        ),
    )  # fmt: skip
