"""The paste dialog: a command or configuration of another tool becomes a preset, with a finding for every flag.

Opened by the Plan screen, which loads the preset that it answers.
"""

from __future__ import annotations

import shlex
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Button, TextArea

from app.tui.screens.saving import ask_and_save
from app.tui.services import Services
from app.tui.widgets.plain import Plain, visible
from app.views.findings import counts_words, findings_blocks
from planner.types import Preset

if TYPE_CHECKING:
    from app.services.importing.imported import Imported

IMPORT_DELAY_S = 0.2  # after the last key: a paste arrives at once, typing does not
_INVITATION = (
    "Paste above what you have: a `swift sft` line, a YAML of axolotl, LLaMA-Factory or TRL, a script. Comments, "
    "joined lines and odd quotes may stay. Tab leaves the text."
)


@dataclass
class Understood(Message):
    text: str
    imported: Imported


class PasteScreen(ModalScreen[Preset | None]):
    """Answers with a preset that can be loaded, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave", priority=True),
        Binding("ctrl+o", "use", "use as preset", priority=True),
        Binding("ctrl+s", "save", "save as", priority=True),
    ]

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services
        self.imported: Imported | None = None
        self._delay: Timer | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="paste") as box:
            box.border_title = "Paste a command or a configuration"
            box.border_subtitle = "Esc leaves it"
            yield TextArea(id="paste-text", soft_wrap=True, show_line_numbers=False, tab_behavior="focus")
            with VerticalScroll(id="paste-findings", can_focus=True):
                yield Plain(_INVITATION, id="paste-words")
            with Horizontal(id="paste-buttons"):
                yield Button("Use as preset (^o)", id="paste-use", disabled=True, compact=True)
                yield Button("Save as (^s)", id="paste-save", disabled=True, compact=True)

    def on_mount(self) -> None:
        self.query_one(TextArea).focus()

    # --- reading -------------------------------------------------------------------------------------------------

    def on_text_area_changed(self) -> None:
        if self._delay is not None:
            self._delay.stop()
        self._delay = self.set_timer(IMPORT_DELAY_S, self._import)

    def _import(self) -> None:
        text = self.query_one(TextArea).text

        def work() -> None:  # the planner is asked, and the GPU: not while keys are waiting
            self.post_message(Understood(text, self.services.import_text(text)))

        threading.Thread(target=work, daemon=True).start()

    def on_understood(self, message: Understood) -> None:
        if message.text != self.query_one(TextArea).text:
            return  # typed on; its own import follows
        self.imported = message.imported if message.text.strip() else None
        has_preset = self.imported is not None and self.imported.preset is not None
        for button in self.query(Button):
            button.disabled = not has_preset
        self._show_findings()
        self.query_one("#paste-findings").scroll_home(animate=False)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_findings)

    def _show_findings(self) -> None:
        words = self.query_one("#paste-words", Plain)
        if self.imported is None:
            words.update(_INVITATION)
            return
        width = max(20, self.query_one("#paste-findings").scrollable_content_region.width - 1)
        lines = [Content(_head(self.imported)), Content("")]
        for block in findings_blocks(self.imported.findings, width=width):
            lines.append(Content.styled(f"{block.title}:", f"bold ${block.role}" if block.role else "bold"))
            lines += [Content(visible(line)) for line in block.lines]
        words.update(Content("\n").join(lines))

    # --- answering -----------------------------------------------------------------------------------------------

    def on_button_pressed(self, message: Button.Pressed) -> None:
        if message.button.id == "paste-use":
            self.action_use()
        else:
            self.action_save()

    def action_use(self) -> None:
        """Load it; it is kept as a file of its own, so that the command shown for it can be run."""
        preset = self._preset
        if preset is not None:
            self.dismiss(self.services.keep_preset(preset))

    def action_save(self) -> None:
        preset = self._preset
        if preset is None:
            return

        ask_and_save(self, self.services, preset, {}, proposal=preset.name, then=self.dismiss)

    @property
    def _preset(self) -> Preset | None:
        if self.imported is None or self.imported.preset is None:
            self.notify("There is no preset yet.", markup=False)
            return None
        return self.imported.preset

    def action_leave(self) -> None:
        self.dismiss(None)


def _head(imported: Imported) -> str:
    """What it is, and what it becomes."""
    counts = counts_words(imported.findings)
    if imported.preset is not None:
        return f"{imported.preset.name}: {counts}"
    if imported.command:
        return f"This trains nothing. The longfit line that does the same:\n$ {visible(shlex.join(imported.command))}"
    return "Nothing to import."
