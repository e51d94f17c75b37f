"""LoRA adapters in numbers: used by the effects of `lora` and `qlora`, which differ only in the base weights."""

from __future__ import annotations

from collections.abc import Mapping

from planner.effects import Drop, Effect, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.activations import LAYER_BACKWARD, SAVED, SAVED_BY_MLP, both_layers
from planner.parts.optimizer import trainable_terms
from planner.parts.sizes import Sizes, sizes_of
from planner.types import DTYPE_BYTES, INSTANTS, Issue

ATTENTION_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION_LINEARS, "gate_proj", "up_proj", "down_proj")


def target_names(targets: str) -> tuple[str, ...]:
    """``all-linear`` or a comma list, in the order of the decoder layer; unknown names are kept, last."""
    if targets.strip() == "all-linear":
        return ALL_LINEAR
    asked = tuple(dict.fromkeys(name.strip() for name in targets.split(",") if name.strip()))
    known = tuple(name for name in ALL_LINEAR if name in asked)
    return known + tuple(name for name in asked if name not in ALL_LINEAR)


def num_adapter_parameters(linears: Mapping[str, tuple[int, int]], num_layers: int, rank: int, targets: str) -> int:
    """A = N * sum over targets of r * (inputs + outputs)."""
    return num_layers * sum(rank * sum(linears[name]) for name in target_names(targets) if name in linears)


def check_adapters(
    ctx: PlanContext, name: str, *, rank: int, alpha: int, targets: str, dropout: float, adapter_dtype: str
) -> tuple[Issue, ...]:
    """What both `lora` and `qlora` refuse."""
    issues: list[Issue] = []

    def refuse(code: str, what: str, why: str, fix: str, **suggestion: object) -> None:
        issues.append(
            Issue(code=code, severity="error", what=what, why=why, fix=fix, suggestion=tuple(suggestion.items()))
        )

    if rank < 1:
        refuse("lora-rank", f"{name}.rank is {rank}.", "A low-rank update needs a rank of at least 1.", "Use rank: 16.")
    if alpha < 1:
        refuse("lora-alpha", f"{name}.alpha is {alpha}.", "The update is scaled by alpha / rank.", "Use alpha: 32.")
    if not 0 <= dropout < 1:
        refuse("lora-dropout", f"{name}.dropout is {dropout}.", "It is a probability below 1.", "Use dropout: 0.05.")
    if adapter_dtype not in DTYPE_BYTES:
        refuse(
            "lora-dtype", f"{name}.adapter_dtype is {adapter_dtype}.", f"Known: {', '.join(DTYPE_BYTES)}.",
            "Use adapter_dtype: float32.",
        )  # fmt: skip
    elif adapter_dtype != "float32" and ctx.config.dtype == "float32":
        refuse(
            "lora-dtype", f"{name}.adapter_dtype is {adapter_dtype} on a float32 base.",
            "Adapters of fewer bits than their base lose the update and save next to nothing.",
            "Use adapter_dtype: float32.",
        )  # fmt: skip
    unknown = [target for target in target_names(targets) if target not in ctx.model.linears]
    if unknown or not target_names(targets):
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
    s = sizes_of(ctx)
    names = tuple(name for name in target_names(targets) if name in s.linears)
    element = DTYPE_BYTES[adapter_dtype]
    count = num_adapter_parameters(s.linears, s.N, rank, targets)
    largest = max((rank * max(s.linears[name]) for name in names), default=0)
    return Effect(
        add=(
            TermSpec(
                key="weights.adapters", part="adapters", instants=frozenset(INSTANTS), bytes=element * count,
                formula=f"{element} * A, A = N * r * sum(inputs + outputs) = {count}", basis="exact",
            ),
            *trainable_terms(ctx, "adapters", num_parameters=count, largest_tensor=largest, element_bytes=element),
            *_saved_by_adapters(ctx, s, names, rank, dropout, element),
        ),
        drop=(
            Drop(key="gradients.base", formula="the base is frozen"),
            Drop(key="optimizer.base", formula="the base is frozen"),
            Drop(key="step.base", formula="the base is frozen"),
            Drop(key="layer.trainable.*", formula="frozen weights need no saved input"),
            Drop(key="other_layers.trainable.*", formula="frozen weights need no saved input"),
            Drop(key="logits.trainable_hidden", formula="the head is frozen"),
        ),
        add_work=_adapter_work(ctx, s, names, count, rank, element),
        drop_work=(Drop(key="gemm.weight_gradient.*", formula="the base is frozen"),),
    )  # fmt: skip


def _saved_by_adapters(
    ctx: PlanContext, s: Sizes, names: tuple[str, ...], rank: int, dropout: float, element: int
) -> list[TermSpec]:
    """Inputs of A, of B, and dropout masks. Casting to another dtype makes each linear keep a copy of its own."""
    copies = s.is_half and element == 4
    saved = 2 if copies and ctx.config.autocast else max(element, s.c)  # bytes of what the matmul with A saves
    terms: list[TermSpec] = []
    for block, instants in (("attention", SAVED), ("mlp", SAVED_BY_MLP)):
        members = [name for name in names if (name in ATTENTION_LINEARS) == (block == "attention")]
        if not members:
            continue
        if copies or dropout > 0:
            width = sum(s.linears[name][0] for name in members)
            text = f"{saved} * {width}: a copy of the input for each of {', '.join(members)}"
        else:
            shared = {"q_proj": "x1", "k_proj": "x1", "v_proj": "x1", "o_proj": "", "gate_proj": "x2", "up_proj": "x2"}
            inputs = {shared.get(name, name): s.linears[name][0] for name in members}
            width = sum(size for kind, size in inputs.items() if kind)  # o_proj's input is the attention output
            text = f"{saved} * {width}: inputs of {', '.join(members)}, shared where they are the same"
        masks = sum(s.linears[name][0] for name in members) if dropout > 0 else 0
        middle = saved * rank * len(members)
        per_token = saved * width + masks + middle
        terms.extend(
            both_layers(
                s, f"adapter.{block}.inputs", "activations", instants, per_token * s.T,
                f"({text}{f'; masks {masks}' if masks else ''}; {saved}r * {len(members)} middles) * T",
            )
        )  # fmt: skip
    if copies and any(name not in ATTENTION_LINEARS for name in names):
        extra = 2 if ctx.config.autocast else 4
        terms.append(
            TermSpec(
                key="layer_backward.adapter", part="activations", instants=LAYER_BACKWARD, bytes=extra * s.f * s.T,
                formula=f"{extra}f * T: gradient of the adapters' copy of down_proj's input",
            )
        )  # fmt: skip
    return terms


def _adapter_work(
    ctx: PlanContext, s: Sizes, names: tuple[str, ...], count: int, rank: int, element: int
) -> tuple[Work, ...]:
    passes = 4 if ctx.config.optimization("gradient_checkpointing") else 3  # forward, recompute; dx and dW
    outputs = sum(s.linears[name][1] for name in names)
    inputs = sum(s.linears[name][0] for name in names)
    casts = s.is_half and element == 4
    in_fp32 = casts and not ctx.config.autocast
    # B's output, its scaling, the sum with the base's output and the cast of that; input casts once or there and back
    per_output = 4 + 8 + 10 + 6 if in_fp32 else s.c + 2 * s.c + 3 * s.c
    per_input = 6 if in_fp32 else 12 if casts else 0
    return (
        Work(
            key="gemm.adapters", kind="gemm_fp32" if in_fp32 else "gemm", amount=2 * passes * count * s.T,
            formula=f"2 * {passes} passes * A * T: the adapters' own products",
        ),
        Work(
            key="memory.adapters", kind="memory",
            amount=passes * s.N * (per_input * inputs + per_output * outputs) * s.T,
            formula=f"{passes} passes * N * ({per_input} * {inputs} inputs + {per_output} * {outputs} outputs) * T",
        ),
    )  # fmt: skip
