"""The small windows: a text to read, a list to pick from, a question to answer. Pushed by the screens."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from app.tui.widgets.plain import Plain, visible


class TextScreen(ModalScreen[None]):
    """A text with a title; any of Esc, q and Enter closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "close")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(visible(self._title))
            box.border_subtitle = "Esc closes"
            with VerticalScroll(classes="dialog-text"):
                yield Plain(self._text)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    async def action_dismiss(self, result: None = None) -> None:
        self.dismiss(None)


class PickerScreen(ModalScreen[str | None]):
    """Type to filter, Enter takes the highlighted row. With ``free_text`` what was typed may be taken as it is."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel"),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
    ]

    def __init__(self, title: str, choices: tuple[str, ...], current: str, *, free_text: bool = False) -> None:
        super().__init__()
        self._title = title
        self._choices = choices
        self._current = current
        self._free_text = free_text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(visible(self._title))
            box.border_subtitle = "Enter takes it, Esc leaves it"
            yield Input(
                placeholder="type to filter" + (", or any other value" if self._free_text else ""), compact=True
            )
            yield OptionList(markup=False, compact=True)

    def on_mount(self) -> None:
        self._fill("")
        self.query_one(Input).focus()

    def on_input_changed(self, message: Input.Changed) -> None:
        self._fill(message.value)

    def _fill(self, typed: str) -> None:
        wanted = typed.lower().split()
        found = [choice for choice in self._choices if all(word in choice.lower() for word in wanted)]
        if self._free_text and typed and typed not in found:
            found.append(typed)
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(Content(visible(choice))) for choice in found)
        self._found = found
        if found:
            options.highlighted = found.index(self._current) if self._current in found else 0

    def action_move(self, direction: int) -> None:
        options = self.query_one(OptionList)
        if direction > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def on_input_submitted(self) -> None:
        highlighted = self.query_one(OptionList).highlighted
        self.dismiss(self._found[highlighted] if highlighted is not None and self._found else None)

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(self._found[message.option_index])

    def action_cancel(self) -> None:
        self.dismiss(None)


class AskScreen(ModalScreen[str | None]):
    """A question answered by a line of text: a name, or the word that confirms. None when it was left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]

    def __init__(self, title: str, text: str, *, must_be: str = "", value: str = "") -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._must_be = must_be
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(visible(self._title))
            box.border_subtitle = "Enter goes on, Esc leaves it"
            with VerticalScroll(classes="dialog-text", can_focus=False):
                yield Plain(self._text)
            yield Input(
                visible(self._value), compact=True, placeholder=f"type {self._must_be}" if self._must_be else ""
            )
            yield Plain("", classes="complaint-line")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        if self._must_be and message.value.strip().lower() != self._must_be:
            self.query_one(".complaint-line", Plain).update(f"Type {self._must_be!r} to go on.")
            return
        if not message.value.strip():
            return
        self.dismiss(message.value.strip())

    def action_cancel(self) -> None:
        self.dismiss(None)


class ConfirmScreen(ModalScreen[bool]):
    """A question answered by one key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "answer(False)", "no"),
        Binding("y,enter", "answer(True)", "yes"),
    ]

    def __init__(self, title: str, text: str, *, yes: str = "y yes") -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(visible(self._title))
            box.border_subtitle = Content(f"{self._yes}   Esc no")
            with VerticalScroll(classes="dialog-text"):
                yield Plain(self._text)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)
