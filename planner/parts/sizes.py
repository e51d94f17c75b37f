"""The symbols of the formulas as one rank sees them; every part and every optimization's effect starts from these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.optimization import PlanContext, RankShape
from planner.types import DTYPE_BYTES, ClusterSpec, ModelSpec, RunConfig

WINDOW_BATCH_TOKENS = 16_384  # core/attention/windows.py, BATCH_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Counts of elements, not bytes, except ``c``, the bytes of one element of the compute dtype.

    Widths (d, f, q, kv, V) are those of the whole model: the projections of a rank make all heads for its T tokens.
    What one attention call holds is ``num_q`` and ``num_kv``: after the exchange of Ulysses a rank has more tokens and
    fewer heads, which leaves num_q = q*T and, with replicated KV heads, makes num_kv larger than kv*T.
    """

    T: int  # tokens of the residual stream on this rank
    L: int  # tokens of one sample (a row holds per_device_train_batch_size of them), over all sequence ranks
    span: int  # of L: what attention's pairs of query and key are counted with, less where layers slide
    d: int
    f: int
    N: int
    H: int
    h: int
    q: int
    kv: int
    V: int
    c: int
    num_q: int
    num_kv: int
    num_lse: int
    attention_tokens: int  # of num_q, num_kv and num_lse
    last_layer_slides: bool  # where some do
    window_tokens: int  # of them, those of one call over what layers that slide see of the chunk before; 0: none slides
    linears: Mapping[str, tuple[int, int]]  # name -> (inputs, outputs)
    on_cpu: bool
    routed: int  # elements a token, read or written to send it to its experts and back
    fuses_gate_up: bool  # the tensor that gate and up are halves of lives as long as either
    norms_in_float32: bool  # the weight of a norm multiplies before the result is cast to the compute dtype
    rotary: int  # leading entries of a head that RoPE rotates
    rotations: int  # pairs of cosine and sine of a token
    lowest_rotations: int  # of these, that are still there when the lowest layers run backward
    sliced_qkv: int  # of the one tensor that q, k and v are slices of, what lives on beside v; 0: each is its own

    @property
    def is_half(self) -> bool:
        """16-bit compute: fp32 copies are then real tensors, not aliases."""
        return self.c == 2

    @property
    def normed(self) -> int:
        """Bytes of one element of what the weight of a norm multiplies."""
        return 4 if self.norms_in_float32 else self.c


def _routed(model: ModelSpec) -> int:
    """k copies of a token are gathered, masked, masked again, weighted, put back in order and summed; what makes gate
    and up of them is masked into a copy (transformers integrations/moe.py, grouped_mm_experts_forward)."""
    experts = model.experts
    return 0 if experts is None else experts.num_active * (11 * model.hidden_size + 4 * experts.width)


def _window_tokens(model: ModelSpec, length: int, attention_tokens: int) -> int:
    """core/attention/windows.py: all but one token of each chunk of a window, in batches."""
    window = model.sliding_window
    if window is None or window >= length:
        return 0
    pairs = attention_tokens // length * (-(-length // window) - 1)
    return min(pairs, max(1, WINDOW_BATCH_TOKENS // window)) * (window - 1)


def sizes_of(config: RunConfig, model: ModelSpec, cluster: ClusterSpec, shape: RankShape) -> Sizes:
    length = min(config.max_length, shape.row_tokens)
    return Sizes(
        T=shape.tokens,
        L=length,
        span=model.attention_span(length),
        d=model.hidden_size,
        f=model.mlp_width,
        N=model.num_layers,
        H=model.num_attention_heads,
        h=model.head_dim,
        q=model.q_width,
        kv=model.kv_width,
        V=model.vocab_size,
        c=DTYPE_BYTES[config.dtype],
        num_q=shape.q_heads * model.head_dim * shape.attention_tokens,
        num_kv=shape.kv_heads * model.head_dim * shape.attention_tokens,
        num_lse=shape.q_heads * shape.attention_tokens,
        attention_tokens=shape.attention_tokens,
        last_layer_slides=model.last_layer_slides,
        window_tokens=_window_tokens(model, length, shape.attention_tokens),
        linears=model.linears,
        on_cpu=cluster.gpu.kind == "cpu",
        routed=_routed(model),
        fuses_gate_up=model.fuses_gate_up,
        norms_in_float32=model.norms_in_float32,
        rotary=model.rotary_width or model.head_dim,
        rotations=model.rotations,
        lowest_rotations=model.lowest_rotations,
        # q and k are new tensors after RoPE, and so is v after an exchange of heads
        sliced_qkv=(model.q_width + model.kv_width) * shape.tokens
        if model.fuses_qkv and shape.attention_tokens == shape.tokens
        else 0,
    )


def evaluation_tokens(ctx: PlanContext) -> int:
    """Tokens of an evaluation batch on this rank."""
    config = ctx.config
    return -(-ctx.shape.tokens * config.per_device_eval_batch_size // config.per_device_train_batch_size)


def windows_backward(s: Sizes, kernel: int) -> int:
    """What a batch of core/attention/windows.py holds in attention's backward, beside the whole row's gradients: copies
    of dout, q, out, k, v and log-sum-exp, their gradients, and its own of ``kernel``, the bytes that the attention
    kernel holds for the row."""
    return (kernel + s.c * (4 * s.num_q + 4 * s.num_kv) + 4 * s.num_lse) * s.window_tokens // s.attention_tokens


def windows_forward(s: Sizes) -> int:
    """What a batch of core/attention/windows.py holds in a forward, beside q, k, v and output of the whole row: in its
    call copies of q, k and v, output and log-sum-exp, or then output, the sum of both blocks and four log-sum-exps."""
    call, join = s.c * (2 * s.num_q + 2 * s.num_kv) + 4 * s.num_lse, (s.c + 4) * s.num_q + 16 * s.num_lse
    return max(call, join) * s.window_tokens // s.attention_tokens
