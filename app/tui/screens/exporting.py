"""Writes a preset as a file, in its own words or in those of another tool. Opened by the Presets screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.tui.screens.dialogs import AskScreen, PickerScreen
from app.views.findings import findings_text
from planner.errors import LongfitError
from planner.types import Preset

if TYPE_CHECKING:
    from textual.screen import Screen

    from app.tui.services import Services

FILE_ENDINGS = {
    "yaml": ".yaml", "swift": ".swift.sh", "axolotl": ".axolotl.yaml", "llamafactory": ".llamafactory.yaml",
    "hf": ".hf.yaml",
}  # fmt: skip


def ask_and_export(screen: Screen, services: Services, preset: Preset) -> None:
    """First the target, then the text, what it cannot say, and the file."""

    def show(target: str | None) -> None:
        if target is None:
            return
        try:
            exported = services.export_preset(preset, target)
        except LongfitError as error:
            screen.notify(str(error), severity="error", timeout=10, markup=False)
            return
        lost = [finding for finding in exported.findings if finding.kind != "translated"]
        text = "\n\n".join(part for part in (findings_text(lost, width=64), exported.text.rstrip()) if part)

        def write(name: str | None) -> None:
            if name is not None:
                _write(screen, services, Path(name).expanduser(), exported.text)

        title = f"Write {preset.name} as {target}: to which file?"
        screen.app.push_screen(AskScreen(title, text, value=preset.name + FILE_ENDINGS[target]), write)

    screen.app.push_screen(PickerScreen(f"Write {preset.name} in the words of", tuple(FILE_ENDINGS), "yaml"), show)


def _write(screen: Screen, services: Services, path: Path, text: str) -> None:
    try:
        services.write_new_file(path, text)
    except LongfitError as error:
        screen.notify(str(error), severity="error", timeout=10, markup=False)
        return
    screen.notify(f"Written: {path}", markup=False)
