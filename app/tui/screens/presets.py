"""The Presets screen: built-in, user's and project's presets; whether each fits its hardware and this machine; its
YAML; compare, load, save, duplicate, write as a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import DataTable, Footer

from app.tui.screens.dialogs import TextScreen
from app.tui.screens.exporting import ask_and_export
from app.tui.screens.filtered import FilteredScreen
from app.tui.screens.saving import ask_and_save
from app.tui.services import Services
from app.tui.widgets.plain import Plain
from app.tui.widgets.plain_table import PlainTable
from app.tui.widgets.top_bar import TopBar
from app.views.plan_view import short_verdict
from app.views.preset_diff import diff_text
from planner.errors import LongfitError
from planner.types import Plan, Preset


@dataclass
class Judged(Message):
    """A preset's verdict on the hardware it is meant for, and on this machine."""

    name: str
    meant: str
    here: str


COLUMNS = ("name", "here", "meant", "for", "length", "from", "model")


class PresetsScreen(FilteredScreen):
    """Verdicts come from a thread, two plans a preset."""

    NOUN = "preset"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "load", "load", tooltip="load it into the Plan screen"),
        Binding("v", "diff", "against plan", tooltip="what differs from what the Plan screen has at hand"),
        Binding("equals_sign", "compare", "compare", key_display="=", tooltip="compare: once on each of two presets"),
        Binding("y", "duplicate", "duplicate", tooltip="save a copy of it under another name"),
        Binding("s", "save", "save plan", tooltip="save what the Plan screen has at hand as a preset"),
        Binding("o", "export", "write", tooltip="write it as a file: yaml, swift, axolotl, llamafactory, hf"),
        Binding("slash", "filter", "filter", key_display="/", tooltip="only presets whose line has these words"),
        Binding("escape", "clear", "all", show=False, tooltip="every preset again, nothing marked"),
    ]

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services
        self._presets: dict[str, Preset] = {}
        self._verdicts: dict[str, tuple[str, str]] = {}

    def compose(self) -> ComposeResult:
        yield TopBar("presets")
        yield self.filter_field()
        yield PlainTable(COLUMNS, id="presets", heads={"here": "fits here", "meant": "fits there"}, fills=("model",))
        with VerticalScroll(id="preset-yaml", can_focus=True) as box:
            box.border_title = "As a file"
            yield Plain(id="preset-text")
        yield Footer(show_command_palette=False, compact=True)

    def on_screen_resume(self) -> None:
        """Read them anew: files may have been written meanwhile."""
        self._presets = {preset.name: preset for preset in self.services.presets()}
        for error in self.services.unreadable_presets():
            self.notify(str(error), severity="error", timeout=10, markup=False)
        self._verdicts.clear()
        self.show_rows()
        self.run_worker(self._judge, thread=True, group="judge", exclusive=True)

    def _judge(self) -> None:
        for preset in self._presets.values():
            meant = _verdict(lambda preset=preset: self.services.plan(self.services.resolve(preset, {}, "")))  # type: ignore[misc]
            here = _verdict(lambda preset=preset: self.services.plan_here(preset))  # type: ignore[misc]
            self.post_message(Judged(preset.name, meant, here))

    def on_judged(self, message: Judged) -> None:
        self._verdicts[message.name] = (message.meant, message.here)
        self.show_rows()

    # --- showing -------------------------------------------------------------------------------------------------

    def show_rows(self) -> None:
        rows = [
            (name, _texts(preset, self._verdicts.get(name, ("...", "...")), marked=self.marked))
            for name, preset in self._presets.items()
        ]
        self.show_filtered(rows, title="Presets", subtitle="Enter loads one into the plan")
        self._show_text()

    def _show_text(self) -> None:
        preset = self._selected
        text = "No preset has these words." if preset is None else self.services.preset_text(preset, {})
        self.query_one("#preset-text", Plain).update(text)

    def on_data_table_row_highlighted(self, message: DataTable.RowHighlighted) -> None:
        self._show_text()

    def on_data_table_row_selected(self, message: DataTable.RowSelected) -> None:
        self.action_load()

    @property
    def _selected(self) -> Preset | None:
        return self._presets.get(self.query_one(PlainTable).selected_key or "")

    # --- actions -------------------------------------------------------------------------------------------------

    def action_load(self) -> None:
        if self._selected is not None:
            self.app.open_preset(self._selected)  # type: ignore[attr-defined]

    def action_diff(self) -> None:
        if self._selected is not None:
            self._show_diff(self._selected, self.app.draft.as_preset("the plan at hand"))  # type: ignore[attr-defined]

    def action_compare(self) -> None:
        """The first press marks a preset, the second on another one shows both; on the same one takes the mark away."""
        preset, marked = self._selected, self._presets.get(self.marked)
        if preset is None:
            return
        self.marked = preset.name if marked is None else ""
        self.show_rows()
        if marked is not None and marked is not preset:
            self._show_diff(marked, preset)

    def _show_diff(self, first: Preset, second: Preset) -> None:
        self.app.push_screen(TextScreen("What differs", diff_text(first, second)))

    def action_duplicate(self) -> None:
        preset = self._selected
        if preset is not None:
            ask_and_save(self, self.services, preset, {}, proposal=f"{preset.name}-copy", then=self._show_saved)

    def action_save(self) -> None:
        draft = self.app.draft  # type: ignore[attr-defined]
        ask_and_save(
            self, self.services, draft.preset, draft.overrides, proposal=f"{draft.preset.name}-mine",
            then=self._show_saved,
        )  # fmt: skip

    def _show_saved(self, saved: Preset) -> None:
        self.on_screen_resume()
        table = self.query_one(PlainTable)
        names = [key.value for key in table.rows]
        if saved.name in names:
            table.move_cursor(row=names.index(saved.name))

    def action_export(self) -> None:
        if self._selected is not None:
            ask_and_export(self, self.services, self._selected)


def _verdict(plan_of: Callable[[], Plan]) -> str:
    try:
        return short_verdict(plan_of())
    except LongfitError as error:
        return error.what


def _texts(preset: Preset, verdicts: tuple[str, str], *, marked: str) -> tuple[str, ...]:
    hardware, (meant, here) = preset.hardware, verdicts
    for_whom = f"{hardware.get('count', 1)}x{hardware['gpu']}" if hardware.get("gpu") else "this machine"
    model = str(preset.values.get("model", "-")).rpartition("/")[2]
    name = f"= {preset.name}" if preset.name == marked else preset.name
    length = str(preset.values.get("max_length", "-"))
    return (name, here, meant, for_whom, length, preset.origin, model)
