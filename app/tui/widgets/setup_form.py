"""The setup form: every field of a preset, the important ones first, the rest mounted when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widget import Widget

from app.services.draft import Draft
from app.tui.fields import FieldSpec, field_choices, field_help, field_is_active, field_text, form_fields
from app.tui.widgets.fields import FieldRow
from app.tui.widgets.plain import Plain


class MoreRow(Widget, can_focus=True):
    """The last line of the short form: Enter shows every other setting."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,space", "open", "all settings", show=False)]

    @dataclass
    class Opened(Message):
        pass

    def render(self) -> str:
        return ("> " if getattr(self.app, "ascii_only", False) else "▸ ") + "all settings"

    def action_open(self) -> None:
        self.post_message(self.Opened())

    def on_click(self) -> None:
        self.action_open()


class SetupForm(VerticalScroll, can_focus=False):
    """``show`` draws a draft; edits leave as FieldChanged messages."""

    def __init__(self, *, presets: tuple[str, ...], models: tuple[str, ...], gpus: tuple[str, ...]) -> None:
        super().__init__(id="setup")
        self.border_title = "Setup"
        self.specs = form_fields()
        self._lists = {"presets": presets, "models": models, "gpus": gpus}
        self._rows = {spec.key: FieldRow(spec) for spec in self.specs if not spec.group}
        self._draft: Draft | None = None

    def compose(self) -> ComposeResult:
        yield from self._rows.values()
        yield MoreRow()

    async def on_more_row_opened(self, message: MoreRow.Opened) -> None:
        message.stop()
        await self.query_one(MoreRow).remove()
        widgets: list[Widget] = []
        group = ""
        for spec in self.specs:
            if not spec.group:
                continue
            if spec.group != group:
                group = spec.group
                widgets.append(Plain(group, classes="group-head"))
            self._rows[spec.key] = FieldRow(spec)
            widgets.append(self._rows[spec.key])
        await self.mount(*widgets)
        if self._draft is not None:
            self.show(self._draft)
        first = next(spec for spec in self.specs if spec.group)
        self._rows[first.key].control.focus()

    def spec(self, key: str) -> FieldSpec:
        return next(spec for spec in self.specs if spec.key == key)

    def choices(self, key: str) -> tuple[str, ...]:
        return field_choices(self.spec(key), **self._lists)

    def help(self, key: str) -> str:
        text = field_text(self.spec(key), self._draft) if self._draft is not None else ""
        return field_help(self.spec(key), text, self.choices(key))

    @property
    def visible_keys(self) -> tuple[str, ...]:
        """The fields that are mounted; only they can show a complaint."""
        return tuple(self._rows)

    def focused_key(self) -> str | None:
        return next((key for key, row in self._rows.items() if row.control.has_focus), None)

    def focus_field(self, key: str) -> None:
        self._rows[key].control.focus()

    def show(self, draft: Draft, *, keep: str = "") -> None:
        """Set every row from the draft, without messages. The field ``keep`` is being typed in and stays."""
        self._draft = draft
        for key, row in self._rows.items():
            row.disabled = not field_is_active(row.spec, draft)
            if key != keep or row.spec.kind in ("choice", "switch"):
                row.show(field_text(row.spec, draft), field_choices(row.spec, **self._lists))

    def complain(self, complaints: Mapping[str, str]) -> None:
        """Write each message below its field and clear all others."""
        for key, row in self._rows.items():
            row.complain(complaints.get(key, ""))
