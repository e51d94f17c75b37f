"""The rows of a form: label, control, and below them what is wrong. Each posts FieldChanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from app.tui.fields import FieldSpec
from app.tui.widgets.plain import Plain, visible


@dataclass
class FieldChanged(Message):
    """A person changed a field; ``text`` is what stands there now."""

    key: str
    text: str


@dataclass
class PickerRequested(Message):
    """Enter on a choice: the screen opens the list."""

    key: str


class NumberInput(Input):
    """An input that keeps only what numbers are made of and lets every other key be a command."""

    def __init__(self, *, takes_fractions: bool) -> None:
        super().__init__(compact=True, classes="control", select_on_focus=True)
        self._characters = "0123456789-_" + (".eE+" if takes_fractions else "")

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return character is not None and character in self._characters

    async def _on_key(self, event: events.Key) -> None:
        if event.is_printable and not self.check_consume_key(event.key, event.character):
            event.prevent_default()  # Input would take it; so it bubbles to the screen's bindings
            return
        await super()._on_key(event)


class Choice(Widget, can_focus=True):
    """A value out of a list: left and right step through it, Enter opens it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "previous", show=False),
        Binding("right", "step(1)", "next", show=False),
        Binding("enter,space", "open", "choose", show=False),
    ]

    def __init__(self, spec: FieldSpec) -> None:
        super().__init__(classes="control")
        self.spec = spec
        self.text = ""
        self.choices: tuple[str, ...] = ()

    def render(self) -> Content:
        width = max(1, self.size.width - 2)
        text = visible(self.text)
        # the end of a long hub id or path tells more than its beginning
        text = text if cell_len(text) <= width else text.rpartition("/")[2]
        more, arrow = ("~", "v") if getattr(self.app, "ascii_only", False) else ("…", "▾")
        shown = text if cell_len(text) <= width else set_cell_size(text, width - 1) + more
        return Content(f"{set_cell_size(shown, width)} {arrow}")

    def action_step(self, direction: int) -> None:
        if not self.choices:
            return
        position = self.choices.index(self.text) + direction if self.text in self.choices else 0
        self._choose(self.choices[position % len(self.choices)])

    def action_open(self) -> None:
        self.post_message(PickerRequested(self.spec.key))

    def on_click(self) -> None:
        self.action_open()

    def _choose(self, text: str) -> None:
        self.text = text
        self.refresh()
        self.post_message(FieldChanged(self.spec.key, text))


class Switch(Widget, can_focus=True):
    """``[x]`` or ``[ ]``: told apart without colour."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,space", "toggle", "switch", show=False)]

    def __init__(self, spec: FieldSpec) -> None:
        super().__init__(classes="control")
        self.spec = spec
        self.is_on = False

    def render(self) -> Content:
        return Content("[x] on" if self.is_on else "[ ] off")

    def action_toggle(self) -> None:
        self.is_on = not self.is_on
        self.refresh()
        self.post_message(FieldChanged(self.spec.key, "true" if self.is_on else "false"))

    def on_click(self) -> None:
        self.action_toggle()


class FieldRow(Vertical):
    """One field. ``show`` sets it without a message; ``complain`` writes beneath it."""

    def __init__(self, spec: FieldSpec) -> None:
        super().__init__(classes="field")
        self.spec = spec
        match spec.kind:
            case "switch":
                self.control: Widget = Switch(spec)
            case "choice":
                self.control = Choice(spec)
            case "number":
                self.control = NumberInput(
                    takes_fractions=spec.preset_key is not None and spec.preset_key.kind == "float"
                )
            case _:
                self.control = Input(compact=True, classes="control", select_on_focus=True)
        self._complaint: Plain | None = None  # mounted with the first one: most fields never have any
        self._complaint_words = ""

    def compose(self) -> ComposeResult:
        with Horizontal(classes="field-line"):
            yield Plain(self.spec.label, classes="field-label")
            yield self.control

    def on_mount(self) -> None:
        if self._complaint_words:
            self._show_complaint()

    def show(self, text: str, choices: tuple[str, ...] = ()) -> None:
        """Set what stands there; a value being typed that means the same is left alone."""
        control = self.control
        if isinstance(control, Switch):
            if control.is_on != (text == "true"):
                control.is_on = text == "true"
                control.refresh()
        elif isinstance(control, Choice):
            control.choices = choices
            if control.text != text:
                control.text = text
                control.refresh()
        elif isinstance(control, Input) and control.value != visible(text):
            with control.prevent(Input.Changed):
                control.value = visible(text)

    def complain(self, words: str) -> None:
        if words != self._complaint_words:
            self._complaint_words = words
            if self.is_mounted:
                self._show_complaint()

    def _show_complaint(self) -> None:
        if self._complaint is None:
            self._complaint = Plain(self._complaint_words, classes="complaint")
            self.mount(self._complaint)
        else:
            self._complaint.update(self._complaint_words)
        self.set_class(bool(self._complaint_words), "-wrong")
        if self._complaint_words and self.has_focus_within:  # the field at work may be the last one in sight
            self.call_after_refresh(self.scroll_visible, animate=False)

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        self.post_message(FieldChanged(self.spec.key, message.value))
