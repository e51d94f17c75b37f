"""How far a model's positions reach, and what `rope_scaling` makes of that. Called by planner/checks.py and search.py.

RoPE scaling stretches the positions a model was trained on. A preset's scaling replaces one that the model brought
along (core/model/load.py, scale_rope): Llama 3.1 was stretched from 8,192 to 131,072 positions, and a factor of a
preset counts from 8,192.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from planner import gemma3
from planner.model_shape import ModelSpec
from planner.types import Issue, RunConfig

TYPES: Mapping[str, str] = {  # type -> what it does to quality
    "yarn": "short texts lose a little, because the factor holds for every length; it is made for fine-tuning",
    "linear": "neighbouring positions move together: expect a worse model until it has been trained at this length",
    "dynamic": "made for inference; in training its frequencies are those of max_length throughout",
}
_OWN_SCALING: Mapping[str, str] = {  # model_type -> why a preset cannot scale its RoPE
    "phi3": "transformers knows no other RoPE scaling for Phi-3 and Phi-4 than longrope, whose factors, one for each "
    "frequency, come with the weights.",
    gemma3.TEXT: "Its layers that attend to the whole row were trained with a RoPE stretched already, and its config "
    "does not say from how many positions, so that a factor has nothing to count from.",
}
LARGEST_FACTOR = 512.0  # Llama 3.1 from 8,192 to 4 million positions: the farthest that was published as trained


def own_scaling(family: str, *, is_stretched: bool) -> str | None:
    """Why a preset cannot scale the RoPE of such a model; None: it can. A scaling goes to Gemma 3's layers that attend
    to the whole row, as its own does: those that slide never meet a distance beyond their window."""
    return None if family == gemma3.TEXT and not is_stretched else _OWN_SCALING.get(family)


def reach(config: RunConfig, model: ModelSpec) -> int:
    """The longest row whose positions the model has, or gets by the preset's scaling."""
    scaling = dict(config.rope_scaling)
    if not scaling:
        return model.max_position_embeddings
    return int(model.original_positions * _factor(scaling))


def next_factor(length: int, model: ModelSpec) -> float:
    """The smallest RoPE factor that covers ``length``, in steps of 0.5."""
    return math.ceil(2 * length / model.original_positions) / 2


def check_positions(config: RunConfig, model: ModelSpec) -> list[Issue]:
    """Errors for a length beyond reach and for a scaling that cannot be; a warning of what a scaling costs."""
    scaling = dict(config.rope_scaling)
    why = own_scaling(model.family, is_stretched=model.rope_is_stretched)
    if scaling and why is not None:
        return [
            Issue(
                code="rope-scaling", severity="error", what=f"rope_scaling is set, and {model.name} takes none.",
                why=why, fix="Leave rope_scaling out.", suggestion=(("rope_scaling", None),),
            )
        ]  # fmt: skip
    wrong = _check_scaling(scaling) if scaling else []
    if wrong:
        return wrong
    length, longest = config.max_length, reach(config, model)
    if length > longest:
        return [_beyond(config, model, longest)]
    if not scaling:
        return []
    factor, native = _factor(scaling), model.max_position_embeddings
    if length <= native:
        what, fix = f"rope_scaling is set, and {length} tokens are within the model's own {native}.", "Leave it out."
        return [_costs(what, scaling, factor, fix)]
    what = f"Rows of {length} tokens are {length / model.original_positions:.2f} times the {model.original_positions} "
    what += "positions that the model's RoPE was made for."
    return [_costs(what, scaling, factor, "Compare on held-out data, long and short.")]


def _check_scaling(scaling: Mapping[str, Any]) -> list[Issue]:
    def refuse(what: str, why: str, fix: str) -> list[Issue]:
        return [Issue(code="rope-scaling", severity="error", what=what, why=why, fix=fix)]

    kind = scaling.get("type", scaling.get("rope_type"))
    if kind not in TYPES:
        return refuse(
            f"rope_scaling has type {kind!r}.", f"longfit trains with {', '.join(TYPES)}.",
            "Set rope_scaling: {type: yarn, factor: 4.0}.",
        )  # fmt: skip
    factor = scaling.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= LARGEST_FACTOR:
        return refuse(
            f"rope_scaling has factor {factor!r}.",
            f"It multiplies the positions of the model, by 1 to {LARGEST_FACTOR:g}.",
            "Set factor to the wanted length over the model's own, rounded up.",
        )
    return []


def _factor(scaling: Mapping[str, Any]) -> float:
    factor = scaling.get("factor", 1.0)
    return float(factor) if isinstance(factor, int | float) else 1.0


def _costs(what: str, scaling: Mapping[str, Any], factor: float, fix: str) -> Issue:
    kind = str(scaling.get("type", scaling.get("rope_type")))
    why = f"RoPE scaling ({kind}, factor {factor:g}) stretches positions: {TYPES[kind]}."
    return Issue(code="rope-scaled", severity="warning", what=what, why=why, fix=fix)


def _beyond(config: RunConfig, model: ModelSpec, longest: int) -> Issue:
    length, native, needed = config.max_length, model.max_position_embeddings, next_factor(config.max_length, model)
    why = "Positions the model never saw give garbage without RoPE scaling."
    if model.original_positions < native:
        why += f" A factor counts from {model.original_positions}, of which the model's own scaling made {native}."
    what = f"max_length {length} is beyond the {native} positions of {model.name}"
    what += f", and beyond the {longest} that rope_scaling gives it." if config.rope_scaling else "."
    if (own := own_scaling(model.family, is_stretched=model.rope_is_stretched)) is not None:
        return Issue(
            code="length-beyond-model", severity="error", what=what, why=f"{why} {own}",
            fix=f"Set max_length: {native}, or choose a model with more positions.",
        )  # fmt: skip
    if needed > LARGEST_FACTOR:
        shorter = int(model.original_positions * LARGEST_FACTOR)
        return Issue(
            code="length-beyond-model", severity="error", what=what,
            why=f"{why} It would take a factor of {needed:g}; beyond {LARGEST_FACTOR:g} none has been shown to train.",
            fix=f"Set max_length: {shorter} or less, or choose a model with more positions.",
        )  # fmt: skip
    return Issue(
        code="length-beyond-model", severity="error", what=what, why=why,
        fix=f"Set rope_scaling: {{type: yarn, factor: {needed:g}}}, or max_length: {native}.",
        suggestion=(("rope_scaling", {"type": "yarn", "factor": needed}),),
    )  # fmt: skip
