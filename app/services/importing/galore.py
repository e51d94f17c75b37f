"""Settles GaLore: for full fine-tuning, when this longfit has it; with adapters it is lost, and that is told with the
arithmetic. Called by imported.py, after the method.
"""

from __future__ import annotations

import re

from app.services.importing.draft import Draft, Wish
from app.services.importing.values import NotUnderstood, number

# what is asked for -> the names that a knob may have
_KNOBS = {
    "rank": ("rank",), "update_interval": ("update_interval", "update_proj_gap"), "scale": ("scale",),
    "layerwise": ("layerwise", "layer_wise"), "targets": ("targets",), "proj_type": ("proj_type",),
}  # fmt: skip
_WITHOUT_KNOB = {
    "layerwise": "--set update=layer --set max_grad_norm=0 plans it; it cannot be trained with yet.",
    "targets": "It projects every matrix of the decoder layers.",
}


def settle_galore(draft: Draft, *, needs_switch: bool) -> None:
    """``needs_switch``: without ``use_galore`` the tool would have done nothing with the numbers."""
    _read_optim_args(draft)
    switch = draft.take("galore")
    knobs = {knob: wish for knob in _KNOBS if (wish := draft.take(f"galore.{knob}")) is not None}
    settings = [wish.setting for wish in (switch, *knobs.values()) if wish is not None]
    if not settings:
        return
    if switch is not None and not switch.value:
        draft.tell("default", settings, why="GaLore is off here too.")
        return
    if draft.method != "full":
        draft.tell(
            "impossible", settings, what=f"GaLore and {draft.method} exclude each other; GaLore is left out.",
            why=_arithmetic(draft), fix="Keep the adapters; GaLore is for full fine-tuning (train_type full).",
        )  # fmt: skip
    elif switch is None and needs_switch:
        draft.tell(
            "ignored", settings, why=f"{draft.tool} does nothing with these without --use_galore true, and neither "
            "does this import.",
        )  # fmt: skip
    elif not draft.facts.offers("galore"):
        draft.tell(
            "impossible", settings, what="GaLore is not in this version of longfit; AdamW takes its place.",
            why="AdamW keeps two states for each parameter, 8 bytes in float32.",
            fix="--set lora.rank=64 trains adapters, whose states are small.",
        )  # fmt: skip
    else:
        _switch_on(draft, switch, knobs)


def _switch_on(draft: Draft, switch: Wish | None, knobs: dict[str, Wish]) -> None:
    has = draft.facts.knobs("galore")
    draft.values["galore"] = True
    draft.decided.add("galore")
    if switch is not None:
        draft.tell("translated", [switch.setting], keys={"galore": True})
    for asked, wish in knobs.items():
        knob = next((name for name in _KNOBS[asked] if name in has), None)
        if knob is None:
            what = f"galore has no such knob; it has {', '.join(has)}."
            draft.tell("impossible", [wish.setting], what=what, fix=_WITHOUT_KNOB.get(asked, ""))
        else:
            draft.put(f"galore.{knob}", wish.value, wish.setting, always=True)


def _arithmetic(draft: Draft) -> str:
    """What there would be to save: the adapters' states against those of all parameters."""
    why = "GaLore shrinks the optimizer states of full-rank weights; adapters are low-rank already."
    model = draft.model
    if model is None:
        return why
    rank = int(draft.values.get(f"{draft.method}.rank", 16))
    adapters = model.num_layers * sum(rank * (inputs + outputs) for inputs, outputs in model.linears.values())
    return (
        f"{why} Rank {rank} on every linear of {model.name} trains {adapters / 1e6:,.0f} million parameters, whose "
        f"states take {8 * adapters / 1e9:.2f} GB; of all parameters {8 * model.num_parameters / 1e9:.0f} GB."
    )


def _read_optim_args(draft: Draft) -> None:
    """Transformers' spelling: optim galore_adamw, optim_args "rank=64, update_proj_gap=100, scale=0.10"."""
    wish = draft.take("galore.optim_args")
    if wish is None:
        return
    if not draft.peek("galore"):
        draft.tell("ignored", [wish.setting], why="They belong to an optimizer that is not offered.")
        return
    names = {"rank": "rank", "update_proj_gap": "update_interval", "scale": "scale", "proj_type": "proj_type"}
    for name, value in re.findall(r"(\w+)\s*=\s*([^,\s]+)", str(wish.value)):
        if name not in names:
            continue
        try:
            found: object = value if name == "proj_type" else number(value)
        except NotUnderstood:
            continue
        draft.wish(f"galore.{names[name]}", int(found) if name in ("rank", "update_proj_gap") else found, wish.setting)  # type: ignore[call-overload]
