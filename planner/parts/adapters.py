"""LoRA adapters in numbers: used by the effects of `lora` and `qlora`, which differ only in the base weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from planner.effects import Drop, Effect, Scale, TermSpec, Work
from planner.gemma3 import TEXT
from planner.optimization import PlanContext
from planner.parts.activations import SAVED, SAVED_BY_DOWN, SAVED_BY_MLP, both_layers, qk_norm_backward
from planner.parts.launches import ADAPTER_BACKWARD, ADAPTER_FORWARD, ADAPTER_RECOMPUTE, CASTS, launch_work
from planner.parts.mlp_forward import attention_forward_bytes, forward_bytes
from planner.parts.mlp_moments import MlpPath, Moment, fullest_moment, without_adapters
from planner.parts.optimizer import trained_terms, trained_work
from planner.parts.recompute import (
    has_liger_norms,
    last_norm_bytes,
    norm_copies_input,
    num_inputs_at_end,
    num_recomputed_layers,
    recomputes_last_layer,
)
from planner.parts.sizes import Sizes, evaluation_tokens
from planner.parts.tensors import Trained, adapter_groups
from planner.types import DTYPE_BYTES, INSTANTS, Instant, Issue

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
# linears of a layer, and what is saved on the way to them, masks of their own inputs included
_IN_ORDER: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("q_proj", "k_proj", "v_proj", "qkv_proj"), ("norm1", "alias.norm1", "adapter.attention.input_masks")),
    (
        ("o_proj",),
        (
            "attention.qkv", "attention.rotation", "attention.qk_norm", "attention.liger_qk_norm",
            "adapter.attention.output_masks",
        ),
    ),
    (  # attention's output is what an adapter of o_proj saves
        ("gate_proj", "up_proj", "gate_up_proj"),
        ("attention.output", "norm2", "liger.norm2", "post_norm1", "adapter.mlp_input_masks"),
    ),
    (("down_proj",), ("mlp", "liger.mlp", "adapter.mlp_product_masks")),
)  # fmt: skip


def target_names(targets: str, linears: Iterable[str]) -> tuple[str, ...]:
    """``all-linear`` or a comma list, in the order of the decoder layer's ``linears``; unknown names are kept, last."""
    known = tuple(linears)
    if targets.strip() == "all-linear":
        return known
    asked = tuple(dict.fromkeys(name.strip() for name in targets.split(",") if name.strip()))
    return (*(name for name in known if name in asked), *(name for name in asked if name not in known))


def adapted_linears(targets: str, linears: Collection[str]) -> tuple[str, ...]:
    """Those of the targets that a decoder layer has."""
    return tuple(name for name in target_names(targets, linears) if name in linears)


def check_adapters(
    ctx: PlanContext, name: str, *, targets: str, dropout: float, adapter_dtype: str
) -> tuple[Issue, ...]:
    """What both `lora` and `qlora` refuse."""
    issues: list[Issue] = []

    def refuse(code: str, what: str, why: str, fix: str, **suggestion: object) -> None:
        issues.append(
            Issue(code=code, severity="error", what=what, why=why, fix=fix, suggestion=tuple(suggestion.items()))
        )

    if dropout >= 1:
        refuse("lora-dropout", f"{name}.dropout is {dropout}.", "It is a probability below 1.", "Use dropout: 0.05.")
    if adapter_dtype != "float32" and ctx.config.dtype == "float32":
        refuse(
            "lora-dtype", f"{name}.adapter_dtype is {adapter_dtype} on a float32 base.",
            "Adapters of fewer bits than their base lose the update and save next to nothing.",
            "Use adapter_dtype: float32.",
        )  # fmt: skip
    asked = target_names(targets, ctx.model.linears)
    unknown = [target for target in asked if target not in ctx.model.linears]
    if unknown or not asked:
        head = "lm_head" in unknown or "embed_tokens" in unknown
        refuse(
            "lora-targets",
            f"{name}.targets names {', '.join(unknown) or 'nothing'}.",
            "An adapter on the head or the embeddings would have to train through the chunked loss, which reads the "
            "head's weight itself." if head else f"This model's linears are {', '.join(ctx.model.linears)}.",
            "Use targets: all-linear, or a comma list of those names.",
        )  # fmt: skip
    if ctx.environment.source == "detected" and "peft" not in ctx.environment.packages:
        refuse("package-peft", f"{name} needs the package peft.", "It is not installed.", "pip install 'peft>=0.21'")
    both = ctx.config.optimization("lora") and ctx.config.optimization("qlora")
    if both and name == "qlora":
        refuse(
            "lora-and-qlora", "Both lora and qlora are switched on.", "qlora is lora on a 4-bit base.",
            "Remove the key lora, or the key qlora.", lora=None,
        )  # fmt: skip
    return tuple(issues)


def adapter_effect(ctx: PlanContext, *, rank: int, targets: str, dropout: float, adapter_dtype: str) -> Effect:
    """Adapters in, gradients and optimizer states of the base out, and what PEFT's forward saves.

    Source: peft 0.21 tuners/lora/layer.py, Linear.forward: ``result + B(A(dropout(x.to(A.dtype)))) * scaling``.
    """
    s = ctx.sizes
    names = adapted_linears(targets, s.linears)
    element = DTYPE_BYTES[adapter_dtype]
    count = _num_parameters(s, names, rank)
    trained = Trained(
        groups=adapter_groups((s.linears[name] for name in names), rank, s.N), element_bytes=element,
        early_parameters=0, late_parameters=max(1, num_inputs_at_end(ctx.config, ctx.model)) * count // s.N,
        layer_parameters=count // s.N,
    )  # fmt: skip
    return Effect(
        add=(
            TermSpec(
                key="weights.adapters", part="adapters", instants=frozenset(INSTANTS), bytes=element * count,
                formula=f"{element} * A, A = N * r * sum(inputs + outputs) = {count}", basis="exact",
            ),
            *trained_terms(ctx, "adapters", trained),
            *_saved_by_adapters(ctx, s, names, rank, dropout, element),
            *_transients_of_adapters(ctx, s, names, rank, element, dropout),
            *_qk_norm_of_adapters(ctx, names, own_copies=dropout > 0 or (s.is_half and element == 4), element=element),
        ),
        drop=(
            Drop(key="layer_forward.last", formula="replaced by what the adapters hold"),
            Drop(key="evaluation.layer", formula="replaced by what the adapters hold"),
            Drop(key="gradients.base.*", formula="the base is frozen"),
            Drop(key="optimizer.base", formula="the base is frozen"),
            Drop(key="optimizer.base.*", formula="the base is frozen"),
            Drop(key="step.base", formula="the base is frozen"),
            Drop(key="step.base.*", formula="the base is frozen"),
            Drop(key="layer.trainable.*", formula="frozen weights need no saved input"),
            Drop(key="other_layers.trainable.*", formula="frozen weights need no saved input"),
            Drop(key="logits.trainable_hidden", formula="the head is frozen"),
            Drop(key="final_norm.trainable", formula="the last norm is frozen"),
            Drop(key="layer_backward.post_norm", formula="replaced by what the adapters hold"),
            Drop(key="attention_backward.qk_norm", formula="replaced by what the adapters hold"),
        ),
        scale=tuple(
            Scale(
                key=f"other_layers.{piece}", numerator=s.N - 2, denominator=s.N - 1,
                formula="what lies before the first adapter needs no gradient",
            )
            for piece in _before_first_adapter(names)
            if s.N > 1 and num_recomputed_layers(ctx.config, ctx.model) == 0  # the first layer is not a recomputed one
        ),
        add_work=(*_adapter_work(ctx, s, names, count, element), *trained_work(ctx, "adapters", trained)),
        drop_work=(
            Drop(key="gemm.weight_gradient.*", formula="the base is frozen"),
            Drop(key="update.base.*", formula="the base is frozen"),
        ),
    )  # fmt: skip


def _before_first_adapter(names: tuple[str, ...]) -> tuple[str, ...]:
    """What the first layer does not save: its input needs no gradient, and neither does anything up to an adapter."""
    not_saved: tuple[str, ...] = ()
    for linears, pieces in _IN_ORDER:
        not_saved += pieces
        if any(name in linears for name in names):
            break
    return not_saved


def _saved_by_adapters(
    ctx: PlanContext, s: Sizes, names: tuple[str, ...], rank: int, dropout: float, element: int
) -> list[TermSpec]:
    """Inputs of A and B, dropout masks. A cast to another dtype makes each linear keep a copy of its own."""
    casts = s.is_half and element == 4
    own_copies = casts or dropout > 0
    saved = _saved_element(ctx, element)
    terms: list[TermSpec] = []

    def add(piece: str, instants: frozenset[Instant], members: list[str], shared: set[str]) -> None:
        """``shared``: inputs that several linears have in common, or that are saved anyway: () when each is copied."""
        if not members:
            return
        width = sum(s.linears[name][0] for name in members if name not in shared)
        per_token = saved * width + saved * rank * len(members)
        terms.extend(
            both_layers(
                s, piece, "activations", instants, per_token * s.T,
                f"({saved} * {width} input + {saved}r * {len(members)}) * T: inputs of A and B of {', '.join(members)}",
                source="peft tuners/lora/layer.py",
            )
        )  # fmt: skip
        if dropout > 0:
            masks = sum(s.linears[name][0] for name in members)
            text = f"{masks} * T: dropout masks of {', '.join(members)}"
            terms.extend(both_layers(s, f"{piece}_masks", "activations", instants, masks * s.T, text))

    def members_of(*of: str) -> list[str]:
        return [name for name in of if name in names]

    def all_but_first(members: list[str]) -> set[str]:
        return set() if own_copies else set(members[1:])

    qkv = members_of("q_proj", "k_proj", "v_proj", "qkv_proj")
    gate_up = members_of("gate_proj", "up_proj", "gate_up_proj", "shared_expert_gate")
    add("adapter.attention.input", SAVED, qkv, all_but_first(qkv))
    add("adapter.attention.output", SAVED_BY_MLP, members_of("o_proj"), set() if own_copies else {"o_proj"})
    add("adapter.mlp_input", SAVED_BY_MLP, gate_up, all_but_first(gate_up))
    add("adapter.mlp_product", SAVED_BY_DOWN, members_of("down_proj"), set())
    if casts and ctx.config.autocast:
        count = _num_parameters(s, names, rank) // s.N
        text = f"2 * {count}: A and B in 16 bit"
        terms.extend(both_layers(s, "adapter.casts", "adapters", SAVED, 2 * count, text))
        evaluation: frozenset[Instant] = frozenset({"evaluation_forward", "evaluation"})
        forward: frozenset[Instant] = frozenset({"layer_forward", "forward_loss"})
        # in forward those of the layers that do not save them
        cached = ((evaluation, "evaluation", s.N), (forward, "forward", num_recomputed_layers(ctx.config, ctx.model)))
        terms += [
            TermSpec(
                key=f"adapter_casts.{when}", part="adapters", instants=instants, bytes=2 * layers * count,
                formula=f"{layers} layers: {text}, cached until autocast ends", source="torch autocast_mode.cpp",
            )
            for instants, when, layers in cached
        ]  # fmt: skip
    return terms


def _transients_of_adapters(
    ctx: PlanContext, s: Sizes, names: tuple[str, ...], rank: int, element: int, dropout: float
) -> list[TermSpec]:
    """What ``base(x) + B(A(x)) * scaling`` holds for a moment in the MLP, in place of the plain path's transients."""
    d, c = s.d, s.c
    recomputes = recomputes_last_layer(ctx)
    path = _mlp_path(ctx, names, rank, element, dropout)
    own = without_adapters(s, fuses_swiglu=path.fuses_swiglu)
    last_norm = last_norm_bytes(ctx)
    # what the last norm of the layer saves is not there while its MLP runs
    not_yet = 4 * d + 4 if ctx.model.norms_outputs else 0
    # they are the input of the first layer, which checkpointing keeps
    embeddings = c * d if num_recomputed_layers(ctx.config, ctx.model) > 0 else 0
    alone = forward_bytes(s, path, saves=False)
    evaluated = forward_bytes(s, replace(path, drops=False), saves=False)
    forward = last_norm
    if ctx.model.experts is None:  # these are counted by parts/expert_layer.py
        forward = max(last_norm, forward_bytes(s, path, saves=True) - embeddings - not_yet)
    tiled = ctx.config.optimization("tiled_mlp")
    if tiled is not None:  # in forward, too: beside a tile the embeddings, the output, and what norms have copied
        whole = (4 if norm_copies_input(ctx) else 2) * c * d
        of_tile = (alone - 2 * c * d) // min(tiled.as_dict()["tiles"], s.T)
        forward = max(last_norm, whole + of_tile - embeddings - not_yet)
    terms = [
        TermSpec(
            key="layer_forward.adapter", part="activations", instants=frozenset({"layer_forward"}),
            bytes=(alone if recomputes else forward) * s.T,
            formula=f"{alone if recomputes else forward} bytes a token: outputs of base and B, scaled, casts",
            source="peft tuners/lora/layer.py",
        ),
        TermSpec(
            key="evaluation.adapter", part="activations", instants=frozenset({"evaluation_forward"}),
            bytes=(evaluated + 2 * c * d) * evaluation_tokens(ctx),
            formula=f"{evaluated + 2 * c * d} bytes a token: embeddings, layer input, outputs of base and B, scaled, "
            "casts",
            source="peft tuners/lora/layer.py",
        ),
    ]  # fmt: skip
    of_last, of_first = _moments(ctx, path)
    in_backward: tuple[tuple[Instant, Moment], ...] = (("layer_backward", of_last), ("backward_end", of_first))
    for instant, moment in in_backward:
        terms.append(
            TermSpec(
                key=f"{instant}.adapter", part="activations", instants=frozenset({instant}),
                bytes=(moment.bytes - own) * s.T,
                formula=f"({moment.bytes} - {own}) bytes a token, beyond the MLP without adapters: {moment.what}",
                source="peft tuners/lora/layer.py",
            )
        )  # fmt: skip
    return terms


def attention_in_forward(ctx: PlanContext, *, drops: bool) -> int:
    """Bytes a token beside the layer's input, where a forward saves nothing; ``drops``: with the adapters' dropout."""
    setting, liger, path = ctx.config.adapters, ctx.config.optimization("liger"), None
    if setting is not None:
        knobs = setting.as_dict()
        names = adapted_linears(knobs["targets"], ctx.model.linears)
        dropout = knobs["dropout"] if drops else 0.0
        path = _mlp_path(ctx, names, knobs["rank"], DTYPE_BYTES[knobs["adapter_dtype"]], dropout)
    in_place = liger is not None and liger.as_dict()["rope"] is True
    return attention_forward_bytes(ctx.sizes, path, rotates_in_place=in_place)


def _qk_norm_of_adapters(
    ctx: PlanContext, names: tuple[str, ...], *, own_copies: bool, element: int
) -> tuple[TermSpec, ...]:  # fmt: skip
    """When q's norm runs backward, k and v are through: the gradient that they give their input is there, and what they
    kept of it for themselves is gone. Gemma 3 norms before it projects backward."""
    s, model = ctx.sizes, ctx.model
    if not model.qk_norm or not norm_copies_input(ctx):
        return ()
    gone = _saved_element(ctx, element) * s.d * len({"k_proj", "v_proj"} & set(names)) if own_copies else 0
    of_adapters = 0 if model.family == TEXT else s.c * s.d - gone
    return (qk_norm_backward(s, model, key="attention_backward.adapter", of_adapters=of_adapters),)


def _at_the_fullest(ctx: PlanContext, names: tuple[str, ...]) -> tuple[str, ...]:
    """Adapted linears that can be at work when the MLP holds most: experts hold more than a shared one's linears."""
    return names if ctx.model.experts is None else tuple(name for name in names if name in ATTENTION)


def _saved_element(ctx: PlanContext, element: int) -> int:
    """Bytes of one element of what the product with A saves."""
    casts = ctx.sizes.is_half and element == 4
    return 2 if casts and ctx.config.autocast else max(element, ctx.sizes.c)


def _mlp_path(ctx: PlanContext, names: tuple[str, ...], rank: int, element: int, dropout: float) -> MlpPath:
    liger = ctx.config.optimization("liger")
    product = _saved_element(ctx, element) * (ctx.sizes.f + rank) + (ctx.sizes.f if dropout > 0 else 0)
    return MlpPath(
        adapted=_at_the_fullest(ctx, names), casts=ctx.sizes.is_half and element == 4, autocast=ctx.config.autocast,
        fuses_swiglu=liger is not None and liger.as_dict()["swiglu"] and ctx.model.experts is None,
        fuses_norm=has_liger_norms(ctx), drops=dropout > 0,
        norms_output=ctx.model.norms_outputs and ctx.config.optimization("tiled_mlp") is None,  # tiles end before it
        product=product if "down_proj" in names else 0,
        frees_input=norm_copies_input(ctx) and ctx.config.optimization("checkpoint_offload") is not None,
    )  # fmt: skip


def _moments(ctx: PlanContext, path: MlpPath) -> tuple[Moment, Moment]:
    """The fullest of the layer that runs backward first, and of one at the end."""
    recomputed = num_recomputed_layers(ctx.config, ctx.model)
    # beside one kept layer the recompute of the next is fuller, beside several the backward of the last
    of_last = fullest_moment(ctx.sizes, path, recomputed=recomputed > 0 and ctx.sizes.N - recomputed <= 1)
    return of_last, fullest_moment(ctx.sizes, path, recomputed=recomputed > 0)


def fullest_moments(ctx: PlanContext) -> tuple[Moment, Moment] | None:
    """Of the MLP in ``layer_backward`` and in ``backward_end``; None without adapters."""
    setting = ctx.config.adapters
    if setting is None:
        return None
    knobs = setting.as_dict()
    names = adapted_linears(knobs["targets"], ctx.model.linears)
    return _moments(ctx, _mlp_path(ctx, names, knobs["rank"], DTYPE_BYTES[knobs["adapter_dtype"]], knobs["dropout"]))


def _adapter_work(ctx: PlanContext, s: Sizes, names: tuple[str, ...], count: int, element: int) -> tuple[Work, ...]:
    recomputed = num_recomputed_layers(ctx.config, ctx.model)
    passes = 3 * s.N + recomputed  # of one layer: forward, dx, dW; recompute
    outputs = sum(s.linears[name][1] for name in names)
    inputs = sum(s.linears[name][0] for name in names)
    casts = s.is_half and element == 4
    in_fp32 = casts and not ctx.config.autocast
    # B's output, its scaling, the sum with the base's output and the cast of that; input casts once or there and back
    per_output = 4 + 8 + 10 + 6 if in_fp32 else s.c + 2 * s.c + 3 * s.c
    per_input = 6 if in_fp32 else 12 if casts else 0
    cast_ns = CASTS.ns if casts else 0
    both_ways, again = ADAPTER_FORWARD.ns + ADAPTER_BACKWARD.ns + 2 * cast_ns, ADAPTER_RECOMPUTE.ns + cast_ns
    return (
        Work(
            key="gemm.adapters", kind="gemm_fp32" if in_fp32 else "gemm", amount=2 * passes * count * s.T // s.N,
            formula=f"2 * {passes} passes of a layer * A / N * T: the adapters' own products",
        ),
        Work(
            key="memory.adapters", kind="memory",
            amount=passes * (per_input * inputs + per_output * outputs) * s.T,
            formula=f"{passes} passes of a layer * ({per_input} * {inputs} inputs + {per_output} * {outputs} outputs) "
            "* T",
        ),
        launch_work(
            "overhead.adapters", len(names) * (s.N * both_ways + recomputed * again),
            f"operators of {len(names)} adapters a layer, both ways and recomputed",
        ),
    )  # fmt: skip


def layer_adapters(ctx: PlanContext) -> tuple[int, int]:
    """Adapter parameters of one decoder layer, and the bytes of each; (0, 0) without adapters."""
    setting = ctx.config.adapters
    if setting is None:
        return 0, 0
    knobs, linears = setting.as_dict(), ctx.model.linears
    widths = sum(sum(linears[name]) for name in adapted_linears(knobs["targets"], linears))
    return knobs["rank"] * widths, DTYPE_BYTES[knobs["adapter_dtype"]]


def _num_parameters(s: Sizes, names: tuple[str, ...], rank: int) -> int:
    return s.N * rank * sum(sum(s.linears[name]) for name in names)
