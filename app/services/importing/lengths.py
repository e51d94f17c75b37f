"""Settles how long a row may be: max_length, packs, RoPE scaling. Called by imported.py, after the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.services.importing.draft import Draft

_ROPE_TYPES = ("linear", "dynamic", "yarn")


def settle_lengths(draft: Draft) -> None:
    _settle_packing(draft)
    _settle_rope(draft)


def _settle_packing(draft: Draft) -> None:
    packing, length, flat = draft.take("packing"), draft.take("packing_length"), draft.take("padding_free")
    if packing is not None:
        draft.put("packing", bool(packing.value), packing.setting)
    if flat is not None:
        why = "Rows of a batch are laid end to end without padding, each attending to itself alone."
        draft.tell("default" if flat.value else "ignored", [flat.setting], why=why)
    if length is None:
        return
    rows = draft.values.get("max_length")
    if not draft.values.get("packing"):
        draft.tell("ignored", [length.setting], why="Packing is off.")
    elif rows is None:
        draft.put("max_length", length.value, length.setting, why="A pack is a row of max_length.")
    elif int(length.value) == int(rows):
        draft.tell("default", [length.setting], why="A pack is a row of max_length.")
    elif int(length.value) < int(rows):
        draft.put("packing.length", length.value, length.setting, why="Longer samples are rows of their own.")
    else:
        draft.tell(
            "impossible", [length.setting], what=f"A pack holds {rows} tokens, as max_length says.",
            why="max_length is the longest row of any kind, packs included.",
            fix=f"--set max_length={length.value}: samples between {rows} and {length.value} tokens then stay whole.",
            keys={"max_length": rows},
        )  # fmt: skip


def _settle_rope(draft: Draft) -> None:
    """ms-swift: a type, and max_model_len to derive the factor from; or the mapping of a config.json."""
    rope, target = draft.take("rope"), draft.take("max_model_len")
    settings = [wish.setting for wish in (rope, target) if wish is not None]
    if rope is None:
        if target is not None:
            draft.tell("ignored", settings, why="max_length says how long rows may be.")
        return
    given: Mapping[str, Any] = rope.value if isinstance(rope.value, Mapping) else {"type": str(rope.value).lower()}
    kind = str(given.get("type") or given.get("rope_type") or "").lower()
    if kind in ("", "none", "default"):
        draft.tell("default", settings, why="Positions are not scaled.")
        return
    if kind not in _ROPE_TYPES:
        draft.tell(
            "impossible", settings, what=f"RoPE scaling by {kind} is not offered.",
            fix=f"Offered: {', '.join(_ROPE_TYPES)}. A model that brings its own scaling in config.json keeps it.",
        )  # fmt: skip
        return
    factor = _factor(draft, given, int(target.value) if target is not None else 0)
    if factor is None:
        draft.tell(
            "unknown", settings, what="The factor cannot be worked out: neither it nor the model's length is known.",
            fix=f"--set rope_scaling.type={kind} --set rope_scaling.factor=4.0",
        )  # fmt: skip
    else:
        draft.put("rope_scaling", {"type": kind, "factor": factor}, *settings)


def _factor(draft: Draft, given: Mapping[str, Any], target: int) -> float | None:
    """The factor given, or the whole number of native lengths that covers the target, as ms-swift does."""
    if given.get("factor") is not None:
        try:
            return float(given["factor"])
        except (TypeError, ValueError):
            return None
    length = target or int(draft.values.get("max_length") or 0)
    model = draft.model
    if model is None or not length:
        return None
    return float(max(1, math.ceil(length / model.max_position_embeddings)))
