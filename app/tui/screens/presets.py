"""The Presets screen: built-in, user's and project's presets, whether each fits its hardware, and its YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer

from app.tui.services import Services
from app.tui.widgets.plain import Plain
from app.tui.widgets.plain_table import PlainTable
from app.tui.widgets.top_bar import TopBar
from app.views.format import format_share
from app.views.parts import VERDICT_WORDS
from planner.errors import LongfitError
from planner.types import Preset


@dataclass
class Judged(Message):
    """A preset's verdict on the hardware it is meant for."""

    key: str
    words: str


COLUMNS = ("name", "verdict", "length", "for", "model", "from")


class PresetsScreen(Screen[None]):
    """Verdicts come from a thread, one plan a preset."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "load", "load into the plan")]

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services
        self._presets: tuple[Preset, ...] = ()
        self._verdicts: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        yield TopBar("presets")
        yield PlainTable(COLUMNS, id="presets", title="Presets", subtitle="Enter loads one into the plan")
        with VerticalScroll(id="preset-yaml", can_focus=True) as box:
            box.border_title = "As a file"
            yield Plain(id="preset-text")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(PlainTable).focus()

    def on_screen_resume(self) -> None:
        """Read them anew: files may have been written meanwhile."""
        try:
            self._presets = self.services.presets()
        except LongfitError as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
            return
        self._verdicts.clear()
        self._show_rows()
        self._show_text()
        self.run_worker(self._judge, thread=True, group="judge", exclusive=True)

    def _judge(self) -> None:
        for index, preset in enumerate(self._presets):
            try:
                plan = self.services.plan(self.services.resolve(preset, {}, ""))
                gpu = plan.worst_gpu
                words = f"{VERDICT_WORDS[plan.verdict]} {format_share(gpu.used_bytes / gpu.usable_bytes)}"
            except LongfitError as error:
                words = error.what
            self.post_message(Judged(str(index), words))

    def on_judged(self, message: Judged) -> None:
        self._verdicts[message.key] = message.words
        self._show_rows()

    def _show_rows(self) -> None:
        self.query_one(PlainTable).show_rows(
            (str(index), _texts(preset, self._verdicts.get(str(index), "...")))
            for index, preset in enumerate(self._presets)
        )

    def on_data_table_row_highlighted(self, message: DataTable.RowHighlighted) -> None:
        self._show_text()

    def on_data_table_row_selected(self, message: DataTable.RowSelected) -> None:
        self.action_load()

    def _selected(self) -> Preset | None:
        index = self.query_one(PlainTable).cursor_row
        return self._presets[index] if 0 <= index < len(self._presets) else None

    def _show_text(self) -> None:
        preset = self._selected()
        self.query_one("#preset-text", Plain).update(
            "No presets." if preset is None else self.services.preset_text(preset, {})
        )

    def action_load(self) -> None:
        preset = self._selected()
        if preset is not None:
            self.app.open_preset(preset)  # type: ignore[attr-defined]


def _texts(preset: Preset, verdict: str) -> tuple[str, ...]:
    hardware = preset.hardware
    meant = f"{hardware.get('count', 1)} x {hardware['gpu']}" if hardware.get("gpu") else "this machine"
    model = str(preset.values.get("model", "-")).rpartition("/")[2]
    return (preset.name, verdict, str(preset.values.get("max_length", "-")), meant, model, preset.origin)
