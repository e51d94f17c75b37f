"""How parts, instants, verdicts and optimizations are called and drawn, the same in every face."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from planner.types import Basis, Instant, OptimizationSetting, Part, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStyle:
    """A part is told apart by pattern and letter first; colour only helps. Colours are Okabe-Ito's."""

    part: Part
    label: str
    fill: str  # one cell of a bar
    letter: str  # the same, where only ASCII can be shown
    color: str
    meaning: str


PART_STYLES: dict[Part, PartStyle] = {
    style.part: style
    for style in (
        PartStyle(part="weights", label="weights", fill="█", letter="W", color="#0072B2",
                  meaning="parameters of the base model"),
        PartStyle(part="adapters", label="adapters", fill="▀", letter="A", color="#66CCEE",
                  meaning="LoRA matrices"),
        PartStyle(part="gradients", label="gradients", fill="▒", letter="G", color="#009E73",
                  meaning="gradients of what is trained"),
        PartStyle(part="optimizer", label="optimizer", fill="▓", letter="O", color="#56B4E9",
                  meaning="AdamW's two moments and its temporaries"),
        PartStyle(part="checkpoints", label="layer inputs", fill="▚", letter="C", color="#F0E442",
                  meaning="what checkpointing keeps for each layer"),
        PartStyle(part="activations", label="activations", fill="░", letter="T", color="#E69F00",
                  meaning="tensors of the layers, saved or at work"),
        PartStyle(part="logits", label="logits, loss", fill="≡", letter="L", color="#CC79A7",
                  meaning="logits, their gradient and the loss"),
        PartStyle(part="communication", label="exchange", fill="~", letter="N", color="#BBBBBB",
                  meaning="buffers between the ranks"),
        PartStyle(part="runtime", label="runtime", fill="·", letter="R", color="#999999",
                  meaning="context, allocator and libraries"),
    )
}  # fmt: skip
OVER_COLOR = "#D55E00"

INSTANT_LABELS: dict[Instant, str] = {
    "load": "after loading",
    "layer_forward": "forward of the last layer",
    "forward_loss": "end of forward, loss",
    "loss_backward": "backward of the loss",
    "layer_backward": "backward of the last layer",
    "attention_backward": "backward of its attention",
    "backward_end": "backward of lowest layers",
    "optimizer_step": "optimizer step",
    "evaluation_forward": "evaluation, a layer",
    "evaluation": "evaluation, loss",
    "save": "saving",
}
VERDICT_WORDS: dict[Verdict, str] = {"fits": "FITS", "tight": "TIGHT", "over": "OVER", "unverified": "UNVERIFIED"}
VERDICT_MEANING: dict[Verdict, str] = {
    "fits": "the upper end of the band is below 92 % of what is usable",
    "tight": "it is not, and yet the expected use is no more than what is usable",
    "over": "the expected use is more than what is usable",
    "unverified": "it fits by the formulas, and has a part that no run has measured: a rehearsal would",
}
BASIS_MEANING: dict[Basis, str] = {
    "exact": "follows from shapes and dtypes alone",
    "measured": "measured on this kind of machine",
    "modelled": "from a formula that was checked against real runs",
    "assumed": "a usual value; rehearse to know it",
}
# least certain last: a sum is only as certain as its weakest term
_BASIS_ORDER: tuple[Basis, ...] = ("exact", "measured", "modelled", "assumed")
_SHORT_NAMES = {
    "lora": "LoRA", "qlora": "QLoRA", "gradient_checkpointing": "checkpointing", "fused_loss": "fused loss",
    "packing": "packing", "ulysses": "Ulysses", "ring": "ring", "fake_parallel": "fake parallel",
    "flash_attention": "FlashAttention", "liger": "Liger", "galore": "GaLore", "fsdp": "FSDP",
    "checkpoint_offload": "checkpoint offload", "weight_streaming": "weight streaming", "tiled_mlp": "tiled MLP",
}  # fmt: skip
_SHOWN_KNOBS = {"lora": ("rank", "r"), "qlora": ("rank", "r"), "ulysses": ("degree", ""), "ring": ("degree", ""),
                "fake_parallel": ("groups", "")}  # fmt: skip


def weakest_basis(bases: Iterable[Basis]) -> Basis:
    return max(bases, key=_BASIS_ORDER.index, default="exact")


def setting_words(setting: OptimizationSetting) -> str:
    """``LoRA r64``, ``Ulysses 2``, ``fused loss``."""
    name = _SHORT_NAMES.get(setting.name, setting.name.replace("_", " "))
    knob, prefix = _SHOWN_KNOBS.get(setting.name, ("", ""))
    value = setting.as_dict().get(knob)
    return name if value is None else f"{name} {prefix}{value}"


def combination_words(settings: Iterable[OptimizationSetting]) -> str:
    """``LoRA r64 + checkpointing + fused loss``; plain full fine-tuning has no settings at all."""
    return " + ".join(setting_words(setting) for setting in settings) or "full fine-tuning, nothing else"


def changes_words(changes: Iterable[tuple[str, Any]]) -> str:
    """Preset keys as a person writes them: ``ring: 2, packing: true``; ``none`` switches a key off."""
    return ", ".join(f"{key}: {value_words(value)}" for key, value in changes) or "no change"


def value_words(value: Any) -> str:
    """A preset value on one line, in YAML's spelling."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
        case dict():
            return "{" + ", ".join(f"{key}: {value_words(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(value_words(item) for item in value) + "]"
    return str(value)
