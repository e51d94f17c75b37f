"""Asks for a preset's name and saves it among the user's presets. Used by the Plan and the Presets screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.services.presets import merge_overrides
from app.tui.screens.dialogs import AskScreen
from planner.errors import LongfitError
from planner.types import Preset

if TYPE_CHECKING:
    from textual.screen import Screen

    from app.tui.services import Services


def ask_and_save(
    screen: Screen, services: Services, preset: Preset, overrides: Mapping[str, Any], *, proposal: str,
    then: Callable[[Preset], None],
) -> None:  # fmt: skip
    """Shows the YAML that will be written, and ``proposal`` as its name. ``then`` gets the preset as loaded back."""

    def save(name: str | None) -> None:
        if name is None:
            return
        changed = replace(preset, values=merge_overrides(preset.values, overrides), measured=())
        try:
            saved = services.save_preset_as(changed, name)
        except LongfitError as error:
            screen.notify(str(error), severity="error", markup=False)
            return
        screen.notify(f"Saved as {saved.path}", markup=False)
        then(saved)

    text = services.preset_text(preset, overrides)
    screen.app.push_screen(AskScreen("Save as preset: its name", text, value=proposal), save)
