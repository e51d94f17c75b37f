"""Attention where no fused kernel runs: float32 scores of a block of query rows, in numbers.

`core/optimizations/flash_attention.py` returns it when the kernel that a run would choose is the reference
(core/attention/kernel.py, ReferenceKernel): float32 on a GPU, or a card before Ampere.
"""

from __future__ import annotations

from planner.effects import Drop, Effect, Scale, TermSpec
from planner.optimization import PlanContext
from planner.parts.activations import ATTENTION_BACKWARD

QUERY_BLOCK = 1024  # rows of scores that exist at a time: core/attention/kernel.py
SCORE_TRAFFIC = 24  # bytes read and written of a score and pass: product, scale, mask, statistics, exponent, product
_SOURCE = "core/attention/kernel.py, ReferenceKernel"


def reference_attention_effect(ctx: PlanContext) -> Effect:
    s, shape, gpu = ctx.sizes, ctx.shape, ctx.cluster.gpu
    setting = ctx.config.optimization("fake_parallel")
    groups = 1 if setting is None else max(1, setting.as_dict()["groups"])
    keys = min(s.L, shape.attention_tokens)
    rows = min(QUERY_BLOCK, keys)
    scores = 4 * shape.q_heads * rows * keys
    wide = 4 * (3 * s.num_q + 2 * s.num_kv) if s.is_half else 0
    held = s.c * s.num_q + wide + 4 * (2 * s.num_q + 2 * s.num_kv)
    seconds_per_flop = 1 / (gpu.fp32_flops or gpu.gemm_flops / 12) + SCORE_TRAFFIC / (4 * s.h) / gpu.memory_bytes_per_s
    return Effect(
        add=(
            TermSpec(
                key="attention_backward.reference", part="activations", instants=ATTENTION_BACKWARD,
                bytes=-(-(2 * scores + held) // groups),
                formula=f"2 * 4H * {rows} * {keys}: scores of {rows} query rows and their gradients, fp32; ({s.c}q"
                + (" + 4(3q + 2kv)" if wide else "")
                + f" + 4(2q + 2kv)) * T: dout, {'operands in fp32, ' * bool(wide)}dq, dk, dv, a product"
                + (f"; one of {groups} groups" if groups > 1 else ""),
                source=_SOURCE,
            ),
        ),
        drop=(Drop(key="attention_backward.gradients", formula="of a fused kernel, which there is none"),),
        scale_work=(
            Scale(
                key="attention.*", numerator=round(2e6 * gpu.attention_flops * seconds_per_flop), denominator=10**6,
                formula=f"2 * (1 / fp32 FLOP/s + {SCORE_TRAFFIC} / 4h / bytes/s): masked scores too, all in float32",
                source=_SOURCE,
            ),
        ),
    )  # fmt: skip
