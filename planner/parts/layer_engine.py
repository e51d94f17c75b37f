"""Memory and work of `engine: layer`, derived from what core/layer keeps and makes, line by line.

It replaces what transformers' modules and the optimizations that the engine carries out would declare. One layer works
at a time; ``engine.`` terms are its own, ``waiting.`` terms those of the layers whose backward is still to come.

    r LoRA rank   R rows of an MLP tile   G head groups
"""

from __future__ import annotations

from typing import Literal

from planner.attention_kernels import KernelName, Version, candidates
from planner.effects import Drop, Effect, TermSpec, Work
from planner.layer_policy import LayerPolicy, layer_policies, outputs_wait_on_host, tile_bounds
from planner.optimization import PlanContext
from planner.parts.adapters import target_names
from planner.parts.sizes import Sizes, evaluation_tokens
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
_LOSS: frozenset[Instant] = frozenset({"forward_loss", "loss_backward"})
_SOURCE = "core/layer/decoder_layer.py"
LAYER_LAUNCH_NS = 55 * 6_000  # about 55 operators of a layer's forward


def layer_engine_effect(ctx: PlanContext) -> Effect:
    policies = layer_policies(ctx.config, ctx.model)
    at_the_end = _end(ctx, policies)
    return Effect(
        add=(
            *_waiting_terms(ctx.sizes, policies, at_the_end),
            *_working_terms(ctx, policies, at_the_end),
            *_loss_terms(ctx),
        ),
        drop=tuple(Drop(key=key, formula="computed by the layer engine") for key in _REPLACED),
        add_work=_work(ctx, policies),
        drop_work=tuple(Drop(key=key, formula="computed by the layer engine") for key in _REPLACED_WORK),
    )


def _end(ctx: PlanContext, policies: tuple[LayerPolicy, ...]) -> Literal["mlp", "attention"]:
    """The fullest moment of a backward that is nearly through, with nearly all gradients there: the first layer's MLP,
    or the second layer's attention, whose first layer waits already."""
    s, first = ctx.sizes, policies[0]
    waiting = s.c * s.d * s.T + (s.c * s.num_q if first.keeps_attention else 0)
    waiting += s.c * (s.num_q + 2 * s.num_kv) if first.keeps_products else 0
    in_attention = _attention_bytes(ctx, first)[0] + waiting
    return "attention" if len(policies) > 1 and in_attention > _mlp_bytes(ctx, first)[0] else "mlp"


def _waiting_terms(
    s: Sizes, policies: tuple[LayerPolicy, ...], at_the_end: Literal["mlp", "attention"]
) -> list[TermSpec]:  # fmt: skip
    """Inputs, attention outputs and products of all layers, in forward, in the last layer's backward, and at its
    end."""
    terms: list[TermSpec] = []

    def waits(name: str, text: str, one: int, here: list[bool], moves: bool, *, done: bool = False) -> None:
        """``here``: of each layer, whether its copy is on the GPU from forward to backward. ``done``: the layer at work
        lets go of it before its attention runs backward."""
        held = sum(here)
        at_end = sum(is_here or moves for is_here in here[: 2 if at_the_end == "attention" else 1])
        # beside the last layer that of the one below it leaves, or arrives, if it is on the host
        arriving = int(moves and here[-1] and len(here) > 1 and not here[-2])
        spread: tuple[tuple[str, frozenset[Instant], int], ...] = (
            ("layer", frozenset({"layer_forward"}), held + arriving), ("loss", _LOSS, held),
            ("mlp", frozenset({"layer_backward"}), held + arriving),
            ("attention", frozenset({"attention_backward"}), held + arriving - int(done and here[-1])),
            ("end", frozenset({"backward_end"}), at_end - int(done and at_the_end == "attention" and here[1])),
        )  # fmt: skip
        for when, instants, layers in spread:
            terms.append(
                TermSpec(
                    key=f"waiting.{name}.{when}", part="checkpoints", instants=instants, bytes=layers * one,
                    formula=f"{layers} layers * {text}", basis="exact", source=_SOURCE,
                )
            )  # fmt: skip

    offloads = any(policy.offloads for policy in policies)
    waits("inputs", f"{s.c}d * T", s.c * s.d * s.T, [not policy.offloads for policy in policies], offloads)
    moves = outputs_wait_on_host(policies)
    kept = [policy.keeps_attention and not (moves and policy.offloads) for policy in policies]
    waits("outputs", f"{s.c}q * T: attention outputs", s.c * s.num_q, kept, moves)
    waits("log_sum_exp", "4H * T", 4 * s.num_lse, [policy.keeps_attention for policy in policies], False)
    whole = [policy.keeps_products for policy in policies]
    waits("qkv", f"{s.c}(q + 2kv) * T: q, k, v", s.c * (s.num_q + 2 * s.num_kv), whole, False)
    waits("mlp", f"{s.c}(d + 2f) * T: h, gate, up", s.c * (s.d + 2 * s.f) * s.T, whole, False, done=True)
    return terms


def _working_terms(
    ctx: PlanContext, policies: tuple[LayerPolicy, ...], at_the_end: Literal["mlp", "attention"]
) -> list[TermSpec]:  # fmt: skip
    """The layer at work, by the policy of the last one: the first to run backward."""
    s, c, policy = ctx.sizes, ctx.sizes.c, policies[-1]
    rows, eval_tokens = _tile_rows(s.T, policy), evaluation_tokens(ctx)
    eval_rows = _tile_rows(eval_tokens, policy)
    ranks = _ranks(ctx)
    recomputed_output = 0 if policy.keeps_attention else c * s.num_q + 4 * s.num_lse
    terms: list[TermSpec] = []

    def add(key: str, instants: frozenset[Instant], size: int, formula: str, part: Part = "activations") -> None:
        terms.append(
            TermSpec(key=key, part=part, instants=instants, bytes=size, formula=formula, source=_SOURCE)
        )  # fmt: skip

    embeddings = c * s.d * s.T if policies[0].offloads else 0  # else they are the first layer's input, which waits
    in_mlp = c * s.d * s.T + (c * s.f if policy.keeps_products else c * (s.d + 3 * s.f)) * rows
    copied = s.num_q if policy.head_groups > 1 else 0  # a group's output, on its way into the whole one
    own_mlp = c * (s.d + 2 * s.f) * s.T if policy.keeps_products else 0  # counted as waiting, made behind attention
    heads = s.num_q + s.num_kv if policy.keeps_products else (s.num_q + 2 * s.num_kv + copied) // policy.head_groups
    in_attention = c * ((s.d + ranks["qkv"]) * s.T + heads) - own_mlp
    add(
        "engine.forward", frozenset({"layer_forward"}), embeddings + max(in_mlp, in_attention) + recomputed_output,
        f"the larger of {in_mlp}: y, and h, gate, up and their product of R = {rows} rows, and {in_attention}: normed "
        f"input, x A^T, q, k, v of a group; {embeddings}: embeddings; {recomputed_output}: attention's output",
    )  # fmt: skip
    output = c * s.q + 4 * s.H
    in_mlp = (c * s.d + output) * eval_tokens + c * (s.d + 3 * s.f) * eval_rows
    in_attention = (c * (s.d + ranks["qkv"] + (s.q + 2 * s.kv) // policy.head_groups) + output) * eval_tokens
    in_attention += c * copied // policy.head_groups * eval_tokens // s.T
    add(
        "engine.evaluation", frozenset({"evaluation_forward"}), 2 * c * s.d * eval_tokens + max(in_mlp, in_attention),
        f"2 * {c}d * {eval_tokens} tokens: embeddings, layer input; and the larger of {in_mlp}: y, attention's output, "
        f"h, gate, up, product of {eval_rows} rows, and {in_attention}: normed input, q, k, v, attention's output",
    )  # fmt: skip
    add(
        "engine.residual", frozenset({"layer_backward", "attention_backward", "backward_end"}),
        c * (s.d * s.T + s.num_q), f"{c}(d + q) * T: gradients of the residual and of attention's output",
    )  # fmt: skip
    if recomputed_output:
        add(
            "engine.output", frozenset({"layer_backward", "attention_backward", "backward_end"}), recomputed_output,
            f"({c}q + 4H) * T: attention's output, recomputed",
        )  # fmt: skip
    in_mlp_too: frozenset[Instant] = frozenset({"layer_backward"})
    in_attention_too: frozenset[Instant] = frozenset({"attention_backward"})
    end: frozenset[Instant] = frozenset({"backward_end"})
    if at_the_end == "attention":
        in_attention_too |= end
    else:
        in_mlp_too |= end
    add("engine.mlp", in_mlp_too, *_mlp_bytes(ctx, policy))
    add("engine.attention", in_attention_too, *_attention_bytes(ctx, policy))
    copies, in_qkv = ranks["parameters"], ranks["qkv_parameters"]
    add(
        "engine.adapters.mlp", in_mlp_too, (c + 6) * copies,
        f"({c} + 6) * {copies}: A and B of one layer in the compute dtype, gradients in fp32, and the scaled ones",
        "adapters",
    )  # fmt: skip
    text = f"4 * {copies - in_qkv}: gradients of o, gate, up, down; ({c} + 4) * {in_qkv}: A and B of q, k, v, gradients"
    add(
        "engine.adapters.attention", frozenset({"attention_backward"}), 4 * (copies - in_qkv) + (c + 4) * in_qkv, text,
        "adapters",
    )  # fmt: skip
    if at_the_end == "attention":  # where this layer's gradients are counted among all
        add(
            "engine.adapters.end", frozenset({"backward_end"}), c * in_qkv,
            f"{c} * {in_qkv}: A and B of q, k, v", "adapters",
        )  # fmt: skip
    if ctx.config.method == "qlora":
        mlp, attention = c * s.d * (s.q + 3 * s.f), c * s.d * (s.q + 2 * s.kv)
        add(
            "engine.dequantised.mlp",
            in_mlp_too | {"layer_forward"},
            mlp,
            f"{c}d(q + 3f): W of o, gate, up, down",
            "weights",
        )
        add(
            "engine.dequantised.attention", in_attention_too, attention,
            f"{c}d(q + 2kv): W of q, k, v", "weights",
        )  # fmt: skip
    return terms


def _mlp_bytes(ctx: PlanContext, policy: LayerPolicy) -> tuple[int, str]:
    """What one tile of the MLP's backward makes."""
    s, c, ranks = ctx.sizes, ctx.sizes.c, _ranks(ctx)
    rows = _tile_rows(s.T, policy)
    per_row = c * (s.d + s.f if policy.keeps_products else 2 * s.d + 3 * s.f)
    narrow = c * (ranks["o"] + ranks["gate_up"] + 2 * ranks["down"])
    made = "norm's output, " + ("" if policy.keeps_products else "h, gate, up, ") + "gradient of the product"
    return (per_row + narrow) * rows, f"({per_row} + {narrow}) * R, R = {rows}: {made}; x A^T and its gradients"


def _attention_bytes(ctx: PlanContext, policy: LayerPolicy) -> tuple[int, str]:
    """What attention's backward makes, head group by head group."""
    s, c, ranks = ctx.sizes, ctx.sizes.c, _ranks(ctx)
    group, scratch = _group_bytes(ctx, policy)
    dn = c * s.d * s.T
    grouped = policy.head_groups > 1
    size = c * (s.d + 2 * ranks["qkv"]) * s.T + group + (scratch + dn if grouped else max(scratch, dn))
    return size, (
        f"{c}d * T: normed input; 2 * {c} * {ranks['qkv']} * T: x A^T; {group}: q, k, v and their gradients of one of "
        f"{policy.head_groups} groups; {scratch}: the kernel's scratch; {dn}: gradient of the normed input"
        + ("" if grouped else ", the larger of the two")
    )  # fmt: skip


def _group_bytes(ctx: PlanContext, policy: LayerPolicy) -> tuple[int, int]:
    """(q, k, v and their gradients of one head group, what the kernel's backward holds beside them)."""
    s, c, groups = ctx.sizes, ctx.sizes.c, policy.head_groups
    qkv = c * (s.num_q + 2 * s.num_kv)
    group = (1 if policy.keeps_products else 2) * qkv // groups  # kept ones are used in place
    query_heads_share = s.num_kv < s.num_q
    scratch = 4 * s.num_q + 4 * s.num_lse  # fp32 dq, row sums of dout * out
    if kernel_of(ctx) in ("flash3", "flash4"):
        scratch += 8 * s.num_kv if query_heads_share else 0  # fp32 dk and dv, summed over query heads
    elif query_heads_share:
        scratch += 2 * c * s.num_q  # dk and dv of each query head
    return group, scratch // groups


def kernel_of(ctx: PlanContext) -> KernelName:
    """The attention kernel that this plan counts on: the first candidate."""
    setting = ctx.config.optimization("flash_attention")
    version: Version = setting.as_dict()["version"] if setting else "auto"
    found = candidates(
        capability=ctx.cluster.gpu.compute_capability if ctx.cluster.gpu.kind == "cuda" else None,
        dtype=ctx.config.dtype, head_dim=ctx.model.head_dim, packages=ctx.environment.packages, version=version,
        deterministic=ctx.config.deterministic,
    )  # fmt: skip
    return found.names[0] if found.names else "torch"


def _loss_terms(ctx: PlanContext) -> tuple[TermSpec, ...]:
    s = ctx.sizes
    one = s.c * s.d * s.T
    return (
        TermSpec(
            key="engine.last_norm", part="activations", instants=frozenset({"forward_loss", "loss_backward"}),
            bytes=one, formula=f"{s.c}d * T: the last norm's input", source="core/layer/engine.py",
        ),
        TermSpec(
            key="engine.last_norm_backward", part="activations", instants=frozenset({"loss_backward"}),
            bytes=2 * one, formula=f"2 * {s.c}d * T: gradients of its output and of its input",
            source="core/layer/engine.py",
        ),
    )  # fmt: skip


def _work(ctx: PlanContext, policies: tuple[LayerPolicy, ...]) -> tuple[Work, ...]:
    s, c = ctx.sizes, ctx.sizes.c
    recomputed = sum(not policy.keeps_products for policy in policies)
    attends_again = sum(not policy.keeps_attention for policy in policies)
    again = s.d * (s.q + 2 * s.kv) * (2 if policies[0].head_groups > 1 and attends_again else 1)
    products = s.d * (s.q + 2 * s.f) + again  # q, k, v, o, gate, up: all but down
    norms = 2 * 2 * c * s.d + 2 * c * (s.q + s.kv) + 2 * c * s.d  # two norms, RoPE, the residual sum behind attention
    forward, backward = norms + 3 * c * s.f, 3 * norms + 6 * c * s.f
    ranks = _ranks(ctx)
    passes = 3 * s.N + recomputed  # forward, recompute; dx and dW
    # x A^T and dy B read every input and output once; B's share of q, k, v, o and down is added to what is written
    widths = ranks["inputs"] + ranks["outputs"]
    offloaded = sum(policy.offloads for policy in policies)
    moved = offloaded * c * (s.d + (s.q if outputs_wait_on_host(policies) else 0)) * s.T
    quantised = ctx.config.method == "qlora"
    dequantised = (2 * s.N + recomputed) * c * sum(i * o for i, o in s.linears.values()) if quantised else 0
    work = [
        Work(
            key="gemm.engine.recompute", kind="gemm", amount=2 * recomputed * products * s.T,
            formula=f"2 * {recomputed} layers * linears but down * T",
        ),
        Work(
            key="attention.engine.recompute", kind="attention", amount=2 * attends_again * s.q * s.L * s.T,
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
    if moved:
        work.append(
            Work(
                key="pcie.engine.offload", kind="pcie", amount=2 * moved, overlapped=True,
                formula=f"2 * {offloaded} layers * {c}(d + q) * T: out in forward, in again in backward",
            )
        )  # fmt: skip
    if dequantised:
        work.append(
            Work(
                key="memory.engine.dequantise", kind="memory", amount=dequantised * 5 // 4,
                formula="W of every linear written in 16 bit, read from 4: forward, recompute, backward",
            )
        )  # fmt: skip
    return tuple(work)


def _tile_rows(num_tokens: int, policy: LayerPolicy) -> int:
    start, end = tile_bounds(num_tokens, policy.mlp_tiles)[0]
    return end - start


def _ranks(ctx: PlanContext) -> dict[str, int]:
    """Ranks that share an input, by input; parameters, inputs and outputs of one layer's adapters."""
    setting = ctx.config.optimization("lora") or ctx.config.optimization("qlora")
    assert setting is not None, "planner/layer_policy.py refuses a run without adapters"
    knobs, linears = setting.as_dict(), ctx.sizes.linears
    names = [name for name in target_names(knobs["targets"], linears) if name in linears]
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
