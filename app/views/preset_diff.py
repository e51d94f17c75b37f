"""Two presets side by side: every key that differs, as a preset file has it. Called by the CLI and the TUI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.views.parts import value_words
from planner.types import Preset

Row = tuple[str, str, str]
ABSENT = "-"


def diff_rows(first: Preset, second: Preset) -> tuple[Row, ...]:
    """(key, of the first, of the second); names and descriptions are no setting. Equal presets have none."""
    a, b = (_flat({"hardware": preset.hardware, **preset.values}) for preset in (first, second))
    return tuple(
        (key, a.get(key, ABSENT), b.get(key, ABSENT)) for key in dict.fromkeys((*a, *b)) if a.get(key) != b.get(key)
    )


def diff_text(first: Preset, second: Preset) -> str:
    """A line for each key; ends without a newline."""
    rows = diff_rows(first, second)
    if not rows:
        return f"{first.name} and {second.name} say the same."
    return "\n".join([f"{first.name} -> {second.name}", "", *(f"{key}: {old} -> {new}" for key, old, new in rows)])


def _flat(values: Mapping[str, Any], head: str = "") -> dict[str, str]:
    """Knobs as dotted keys: ``lora.rank``. A mapping that stands for a value (rope_scaling) goes by its parts too."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{head}{key}.") or {f"{head}{key}": "{}"}
        else:
            found[f"{head}{key}"] = value_words(value)
    return found
