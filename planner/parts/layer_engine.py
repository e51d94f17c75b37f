"""Memory and work of `engine: layer`, derived from what core/layer keeps and makes, line by line.

It replaces what transformers' modules and the optimizations that the engine carries out would declare. One layer works
at a time; ``engine.`` terms are its own, ``waiting.`` terms those of the layers whose backward is still to come.

    r LoRA rank   R rows of an MLP tile   G head groups
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.attention_kernels import KernelName, Version, candidates, cudnn_takes
from planner.effects import Drop, Effect, Scale, TermSpec, Work
from planner.layer_policy import LayerPolicy, layer_policies, outputs_wait_on_host, tile_rows
from planner.optimization import PlanContext
from planner.parts.adapters import adapted_linears, layer_adapters
from planner.parts.layer_waiting import LOSS, SOURCE, LayerPart, Moment, Waiting, waiting_of, waiting_terms
from planner.parts.offload import copies, slot_terms
from planner.parts.recompute import num_inputs_at_end
from planner.parts.sizes import Sizes, evaluation_tokens, windows_backward, windows_forward
from planner.types import Instant, Part

NAME = "engine layer"  # what the declarations below are attributed to
_REPLACED = (
    "layer.*", "other_layers.*", "layer_forward.*", "layer_backward.*", "backward_end.*", "attention_backward.residual",
    "attention_backward.gradients", "attention_backward.qk_norm", "attention_backward.group",
    "attention_backward.adapter", "attention_backward.dequantised",
    "evaluation.layer", "evaluation.adapter", "adapter_casts.*", "final_norm", "final_norm.*", "fused_loss.backward",
)  # fmt: skip
_REPLACED_WORK = (
    "memory.layers", "gemm.adapters", "memory.adapters", "overhead.launches", "overhead.adapters", "memory.dequantise"
)  # fmt: skip
_BACKWARD: frozenset[Instant] = frozenset({"layer_backward", "attention_backward", "backward_end"})
_Ranks = Mapping[str, int]  # see _ranks
LAYER_LAUNCH_NS = 55 * 6_000  # about 55 operators of a layer's forward
# The catalog's rate of products is that of a card with pauses between them. This engine leaves none: one H200 stayed at
# its power limit, and ten rows of it were too fast by a tenth of their products' time (docs/log.md, 2026-11-30).
_AT_POWER_LIMIT = Scale(
    key="gemm.*", numerator=110, denominator=100, formula="at the power limit, measured on one H200"
)  # fmt: skip


def layer_engine_effect(ctx: PlanContext) -> Effect:
    policies, ranks = layer_policies(ctx.config, ctx.model), _ranks(ctx)
    waiting = waiting_of(ctx.sizes, policies)
    end = _end(ctx, ranks, policies, waiting)
    return Effect(
        add=(
            *waiting_terms(waiting, end),
            *slot_terms(ctx),
            *_working_terms(ctx, ranks, policies, end),
            *_loss_terms(ctx),
        ),
        drop=tuple(Drop(key=key, formula="computed by the layer engine") for key in _REPLACED),
        add_work=_work(ctx, ranks, policies),
        drop_work=tuple(Drop(key=key, formula="computed by the layer engine") for key in _REPLACED_WORK),
        scale_work=(_AT_POWER_LIMIT,) if ctx.cluster.gpu.kind == "cuda" else (),
    )


def _end(ctx: PlanContext, ranks: _Ranks, policies: tuple[LayerPolicy, ...], waiting: tuple[Waiting, ...]) -> Moment:
    """The fullest moment of the lowest two layers: the second one's MLP or attention, beside what the first one waits
    with, or the first one's MLP, beside one layer's gradients more. Its input needs no gradient: its attention holds
    less."""
    parameters, element = layer_adapters(ctx)

    def held(moment: Moment) -> int:
        part, policy = _mlp_bytes if moment.part == "mlp" else _attention_bytes, policies[moment.layer]
        adapters = _adapter_bytes(ctx, ranks, moment.part)[0] - moment.layer * element * parameters
        waits = sum(kind.one * kind.layers_at(moment) for kind in waiting)
        made = part(ctx, ranks, policy)[0] + _recomputed_output_bytes(ctx.sizes, policy)[0]
        return made + adapters + waits + _dequantised_bytes(ctx, moment.part)[0]

    moments = [Moment(layer=0, part="mlp")]
    if len(policies) > 1:
        moments += [Moment(layer=1, part="mlp"), Moment(layer=1, part="attention")]
    return max(moments, key=held)


def _working_terms(ctx: PlanContext, ranks: _Ranks, policies: tuple[LayerPolicy, ...], end: Moment) -> list[TermSpec]:
    """The layer at work, by the policy of the last one: the first to run backward; at the end by that of its own."""
    s, c, policy = ctx.sizes, ctx.sizes.c, policies[-1]
    terms: list[TermSpec] = []

    def add(key: str, instants: frozenset[Instant], size: int, formula: str, part: Part = "activations") -> None:
        terms.append(
            TermSpec(key=key, part=part, instants=instants, bytes=size, formula=formula, source=SOURCE)
        )  # fmt: skip

    add("engine.forward", frozenset({"layer_forward"}), *_forward_bytes(ctx, ranks, policies))
    add("engine.evaluation", frozenset({"evaluation_forward"}), *_evaluation_bytes(ctx, ranks, policy))
    add(
        "engine.residual", _BACKWARD, c * (s.d * s.T + s.num_q),
        f"{c}(d + q) * T: gradients of the residual and of attention's output",
    )  # fmt: skip
    moments: tuple[tuple[Instant, LayerPolicy, LayerPart], ...] = (
        ("layer_backward", policy, "mlp"), ("attention_backward", policy, "attention"),
        ("backward_end", policies[end.layer], end.part),
    )  # fmt: skip
    for instant, of, name in moments:
        at = frozenset({instant})
        add(f"engine.{instant}.layer", at, *(_mlp_bytes if name == "mlp" else _attention_bytes)(ctx, ranks, of))
        output, text = _recomputed_output_bytes(s, of)
        add(f"engine.{instant}.output", at, output, text)
        add(f"engine.{instant}.adapters", at, *_adapter_bytes(ctx, ranks, name), "adapters")
        add(f"engine.{instant}.dequantised", at, *_dequantised_bytes(ctx, name), "weights")
    # gradients at the end are counted without those of num_inputs_at_end layers
    if end.layer + 1 < num_inputs_at_end(ctx.config, ctx.model) and ctx.config.gradient_accumulation_steps == 1:
        parameters, element = layer_adapters(ctx)
        add(
            "engine.backward_end.gradients", frozenset({"backward_end"}), element * parameters,
            f"{element} * {parameters}: of the second layer", "gradients",
        )  # fmt: skip
    return terms


def _forward_bytes(ctx: PlanContext, ranks: _Ranks, policies: tuple[LayerPolicy, ...]) -> tuple[int, str]:
    """The fullest of the last layer's attention, its MLP, and the last norm."""
    s, c, policy = ctx.sizes, ctx.sizes.c, policies[-1]
    rows = tile_rows(s.T, policy.mlp_tiles)
    embeddings = c * s.d * s.T if policies[0].offloads else 0  # else they are the first layer's input, which waits
    output = _recomputed_output_bytes(s, policy)[0]
    in_mlp = c * s.d * s.T + (c * s.f if policy.keeps_products else c * (s.d + 3 * s.f)) * rows + output
    in_mlp += _opened_bytes(ctx, ranks, "mlp")
    copied = s.num_q if policy.head_groups > 1 else 0  # a group's output, on its way into the whole one
    own_mlp = c * (s.d + 2 * s.f) * s.T if policy.keeps_products else 0  # counted as waiting, made behind attention
    heads = (s.num_q + 2 * s.num_kv + copied + _normed_heads(ctx)) // policy.head_groups
    if policy.keeps_products:
        heads = s.num_q + s.num_kv
    in_attention = c * ((s.d + ranks["qkv"]) * s.T + heads) + _opened_bytes(ctx, ranks, "attention") + output - own_mlp
    in_attention += windows_forward(s) // policy.head_groups
    in_norm = 2 * c * s.d * s.T
    return embeddings + max(in_mlp, in_attention, in_norm), (
        f"{embeddings}: embeddings; and the largest of {in_mlp}: y, and h, gate, up and their product of R = {rows} "
        f"rows; {in_attention}: normed input, x A^T, q, k, v of a group, attention's output unless it waits"
        f"{_of_windows(s)}; "
        f"{in_norm}: the last layer's output and its norm; with A, B and dequantised W of the linears at work"
    )


def _evaluation_bytes(ctx: PlanContext, ranks: _Ranks, policy: LayerPolicy) -> tuple[int, str]:
    s, c, tokens = ctx.sizes, ctx.sizes.c, evaluation_tokens(ctx)
    rows = tile_rows(tokens, policy.mlp_tiles)
    output, copied = c * s.q + 4 * s.H, s.num_q if policy.head_groups > 1 else 0
    in_mlp = (c * s.d + output) * tokens + c * (s.d + 3 * s.f) * rows
    in_mlp += _opened_bytes(ctx, ranks, "mlp")
    in_attention = (c * (s.d + ranks["qkv"] + (s.q + 2 * s.kv) // policy.head_groups) + output) * tokens
    in_attention += windows_forward(s) * tokens // (s.T * policy.head_groups)
    in_attention += c * ((copied + _normed_heads(ctx)) // policy.head_groups) * tokens // s.T
    in_attention += _opened_bytes(ctx, ranks, "attention")
    return 2 * c * s.d * tokens + max(in_mlp, in_attention), (
        f"2 * {c}d * {tokens} tokens: embeddings, layer input; and the larger of {in_mlp}: y, attention's output, h, "
        f"gate, up, product of {rows} rows, and {in_attention}: normed input, q, k, v, attention's output"
        f"{_of_windows(s)}; with A, B "
        "and dequantised W of the linears at work"
    )


def _of_windows(s: Sizes) -> str:
    return ", a batch of what windows see of the chunk before" if s.window_tokens else ""


def _recomputed_output_bytes(s: Sizes, policy: LayerPolicy) -> tuple[int, str]:
    if policy.keeps_attention:
        return 0, "attention's output waits"
    return s.c * s.num_q + 4 * s.num_lse, f"({s.c}q + 4H) * T: attention's output, recomputed"


def _opened_bytes(ctx: PlanContext, ranks: _Ranks, part: LayerPart) -> int:
    """What a forward makes of the weights it multiplies by: A and B in the compute dtype, W where it is in 4 bits."""
    in_qkv = ranks["qkv_parameters"]
    adapters = in_qkv if part == "attention" else ranks["parameters"] - in_qkv
    return ctx.sizes.c * adapters + _dequantised_bytes(ctx, part)[0]


def _adapter_bytes(ctx: PlanContext, ranks: _Ranks, part: LayerPart) -> tuple[int, str]:
    """Copies and gradients of the adapters of the layer at work."""
    c = ctx.sizes.c
    copies, in_qkv = ranks["parameters"], ranks["qkv_parameters"]
    if part == "mlp":
        text = f"({c} + 6) * {copies}: A and B of one layer in the compute dtype, gradients in fp32, the scaled ones"
        return (c + 6) * copies, text
    return 4 * (copies - in_qkv) + (c + 4) * in_qkv, (
        f"4 * {copies - in_qkv}: gradients of o, gate, up, down; ({c} + 4) * {in_qkv}: A and B of q, k, v, gradients"
    )


def _dequantised_bytes(ctx: PlanContext, part: LayerPart) -> tuple[int, str]:
    s = ctx.sizes
    if ctx.config.method != "qlora":
        return 0, "weights are used as they are"
    if part == "mlp":
        return s.c * s.d * (s.q + 3 * s.f), f"{s.c}d(q + 3f): W of o, gate, up, down"
    return s.c * s.d * (s.q + 2 * s.kv), f"{s.c}d(q + 2kv): W of q, k, v"


def _mlp_bytes(ctx: PlanContext, ranks: _Ranks, policy: LayerPolicy) -> tuple[int, str]:
    """What one tile of the MLP's backward makes."""
    s, c = ctx.sizes, ctx.sizes.c
    rows = tile_rows(s.T, policy.mlp_tiles)
    per_row = c * (s.d + s.f if policy.keeps_products else 2 * s.d + 3 * s.f)
    narrow = c * (ranks["o"] + ranks["gate_up"] + 2 * ranks["down"])
    made = "norm's output, " + ("" if policy.keeps_products else "h, gate, up, ") + "gradient of the product"
    return (per_row + narrow) * rows, f"({per_row} + {narrow}) * R, R = {rows}: {made}; x A^T and its gradients"


def _attention_bytes(ctx: PlanContext, ranks: _Ranks, policy: LayerPolicy) -> tuple[int, str]:
    """What attention's backward makes, head group by head group."""
    s, c = ctx.sizes, ctx.sizes.c
    group, scratch = _group_bytes(ctx, policy)
    dn = c * s.d * s.T
    grouped = policy.head_groups > 1
    size = c * (s.d + 2 * ranks["qkv"]) * s.T + group + (scratch + dn if grouped else max(scratch, dn))
    return size, (
        f"{c}d * T: normed input; 2 * {c} * {ranks['qkv']} * T: x A^T; {group}: q, k, v and their gradients of one of "
        f"{policy.head_groups} groups; {scratch}: the kernel's scratch"
        f"{_of_windows(s)}; {dn}: gradient of the normed input"
        + ("" if grouped else ", the larger of the two")
    )  # fmt: skip


def _group_bytes(ctx: PlanContext, policy: LayerPolicy) -> tuple[int, int]:
    """(q, k, v and their gradients of one head group, what the kernel's backward holds beside them)."""
    s, c, groups = ctx.sizes, ctx.sizes.c, policy.head_groups
    qkv = c * (s.num_q + 2 * s.num_kv)
    group = (1 if policy.keeps_products else 2) * qkv // groups  # kept ones are used in place
    group += c * _normed_heads(ctx) // groups
    query_heads_share = s.num_kv < s.num_q
    scratch = 4 * s.num_q + 4 * s.num_lse  # fp32 dq, row sums of dout * out
    kernel = kernel_of(ctx)
    if kernel in ("flash3", "flash4"):
        scratch += 8 * s.num_kv if query_heads_share else 0  # fp32 dk and dv, summed over query heads
    elif query_heads_share:
        scratch += 2 * c * s.num_q  # dk and dv of each query head
    # of output and its gradient: a group's part of them is not contiguous
    torch_copies = 2 * c * s.num_q if groups > 1 and kernel == "torch" else 0
    return group, max(scratch + torch_copies, windows_backward(s, scratch)) // groups


def _normed_heads(ctx: PlanContext) -> int:
    """Elements of q and k behind the norm of each head, beside what was projected; in backward, behind the kernel, of
    the gradients of what was projected."""
    return ctx.sizes.num_q + ctx.sizes.num_kv if ctx.model.qk_norm else 0


def kernel_of(ctx: PlanContext) -> KernelName:
    """The attention kernel whose scratch counts: the first candidate. torch's stands in for cuDNN where a row has
    several segments, as a packed one may and one with windows has, and where its length is not worth a graph."""
    setting = ctx.config.optimization("flash_attention")
    version: Version = setting.as_dict()["version"] if setting else "auto"
    found = candidates(
        capability=ctx.cluster.gpu.compute_capability if ctx.cluster.gpu.kind == "cuda" else None,
        dtype=ctx.config.dtype, head_dim=ctx.model.head_dim, packages=ctx.environment.packages, version=version,
        deterministic=ctx.config.deterministic,
    )  # fmt: skip
    name = found.names[0] if found.names else "torch"
    has_segments = ctx.config.optimization("packing") is not None or ctx.sizes.window_tokens > 0
    return "torch" if name == "cudnn" and (has_segments or not cudnn_takes(ctx.config.max_length)) else name


def _loss_terms(ctx: PlanContext) -> tuple[TermSpec, ...]:
    s = ctx.sizes
    one = s.c * s.d * s.T
    # the gradients of whole logits, which are wider, are gone before
    beside = 2 * one if ctx.config.optimization("fused_loss") else 0
    return (
        TermSpec(
            key="engine.last_norm", part="activations", instants=LOSS, bytes=one,
            formula=f"{s.c}d * T: the last norm's input", source="core/layer/engine.py",
        ),
        TermSpec(
            key="engine.last_norm_backward", part="activations", instants=frozenset({"loss_backward"}),
            bytes=beside, source="core/layer/engine.py",
            formula=f"2 * {s.c}d * T: gradients of its output and of its input, where the loss is chunked",
        ),
    )  # fmt: skip


def _work(ctx: PlanContext, ranks: _Ranks, policies: tuple[LayerPolicy, ...]) -> tuple[Work, ...]:
    s, c = ctx.sizes, ctx.sizes.c
    recomputed = sum(not policy.keeps_products for policy in policies)
    attends_again = sum(not policy.keeps_attention for policy in policies)
    again = s.d * (s.q + 2 * s.kv) * (2 if policies[0].head_groups > 1 and attends_again else 1)
    products = s.d * (s.q + 2 * s.f) + again  # q, k, v, o, gate, up: all but down
    norms = 2 * 2 * c * s.d + 2 * c * (s.q + s.kv) + 2 * c * s.d  # two norms, RoPE, the residual sum behind attention
    forward, backward = norms + 3 * c * s.f, 3 * norms + 6 * c * s.f
    passes = 3 * s.N + recomputed  # forward, recompute; dx and dW
    # x A^T and dy B read every input and output once; B's share of q, k, v, o and down is added to what is written
    widths = ranks["inputs"] + ranks["outputs"]
    offloaded = sum(policy.offloads for policy in policies)
    width, words = s.d, f"{c}d * T: inputs"
    if outputs_wait_on_host(policies):
        width, words = width + s.q, f"{c}(d + q) * T: inputs and attention outputs"
    quantised = ctx.config.method == "qlora"
    dequantised = (2 * s.N + recomputed) * c * sum(i * o for i, o in s.linears.values()) if quantised else 0
    work = [
        Work(
            key="gemm.engine.recompute", kind="gemm", amount=2 * recomputed * products * s.T,
            formula=f"2 * {recomputed} layers * linears but down * T",
        ),
        Work(
            key="attention.engine.recompute", kind="attention", amount=2 * attends_again * s.q * s.span * s.T,
            formula=f"2 * {attends_again} layers * q * L * T: causal attention forward again",
        ),
        Work(
            key="gemm.engine.adapters", kind="gemm", amount=2 * passes * ranks["parameters"] * s.T,
            formula=f"2 * {passes} passes * A * T, A = {ranks['parameters']} of a layer",
        ),
        Work(
            key="memory.engine.rows", kind="memory",
            amount=(s.N * (forward + backward) + recomputed * forward) * s.T,
            formula=f"N * ({forward} + {backward}) * T: norms, RoPE, SwiGLU, each operand once; {recomputed} layers' "
            "forward again",
        ),
        Work(
            key="memory.engine.adapters", kind="memory", amount=passes * c * widths * s.T,
            formula=f"{passes} passes * {c} * {widths} inputs and outputs * T",
        ),
        Work(
            key="overhead.engine", kind="overhead", amount=4 * s.N * LAYER_LAUNCH_NS, overlapped=True,
            formula=f"4 * N * {LAYER_LAUNCH_NS} ns: kernels started one by one",
        ),
    ]  # fmt: skip
    if offloaded:
        work.append(copies("engine.offload", ctx, offloaded * c * width * s.T, f"{offloaded} layers * {words}"))
    if dequantised:
        work.append(
            Work(
                key="memory.engine.dequantise", kind="memory", amount=dequantised * 5 // 4,
                formula="W of every linear written in 16 bit, read from 4: forward, recompute, backward",
            )
        )  # fmt: skip
    return tuple(work)


def _ranks(ctx: PlanContext) -> _Ranks:
    """Ranks that share an input, by input; parameters, inputs and outputs of one layer's adapters."""
    setting = ctx.config.adapters
    assert setting is not None, "planner/layer_policy.py refuses a run without adapters"
    knobs, linears = setting.as_dict(), ctx.sizes.linears
    names = adapted_linears(knobs["targets"], linears)
    rank = knobs["rank"]
    inputs = {"qkv": ("q_proj", "k_proj", "v_proj"), "o": ("o_proj",), "gate_up": ("gate_proj", "up_proj")}
    ranks = {name: rank * sum(member in names for member in members) for name, members in inputs.items()}
    return {
        **ranks,
        "down": rank * ("down_proj" in names),
        "parameters": rank * sum(sum(linears[name]) for name in names),
        "qkv_parameters": rank * sum(sum(linears[name]) for name in names if name in inputs["qkv"]),
        "inputs": sum(linears[name][0] for name in names),
        "outputs": sum(linears[name][1] for name in names),
    }
