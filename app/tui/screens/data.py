"""The Data screen: what becomes of each row of the draft's data before a GPU is touched. Nothing is read unasked."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer

from app.services.draft import Draft
from app.tui.services import Services
from app.tui.widgets.narrow import PaneTabs
from app.tui.widgets.plain import Plain, visible
from app.tui.widgets.plain_table import PlainTable
from app.tui.widgets.top_bar import TopBar
from app.views.data_report import (
    asked_of,
    asked_words,
    fate_rows,
    file_rows,
    histogram_rows,
    length_words,
    packing_words,
    preview_lines,
    progress_words,
    token_words,
)
from app.views.format import format_count
from core.data.report import DataRefused, problem_lines
from planner.errors import LongfitError


@dataclass
class Progressed(Message):
    words: str


@dataclass
class Reported(Message):
    """``report`` is core/data/prepare.py's; ``problem`` says why there is none, or what a refused set has wrong."""

    asked: str
    report: Mapping[str, Any] | None
    problem: str = ""


class DataScreen(Screen[None]):
    """Reads in a thread that nobody waits for: other screens, and leaving, are open all the while."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r,enter", "read", "read", key_display="r", tooltip="read the data and report what becomes of each row")
    ]
    PANES = (("data-counts", "Counts"), ("data-lengths", "Lengths"), ("data-rows", "Rows"))

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services
        self.is_reading = False
        self._report: Mapping[str, Any] | None = None
        self._asked = ""  # what the report is about

    def compose(self) -> ComposeResult:
        yield TopBar("data")
        yield Plain(id="data-status")
        yield PaneTabs(self.PANES)
        with Horizontal(id="data-top"):
            yield PlainTable(
                ("rows", "share", "what"),
                id="data-counts",
                title="What becomes of the rows",
                heads={"rows": "    rows"},
                fills=("what",),
            )
            with VerticalScroll(id="data-lengths", can_focus=True) as lengths:
                lengths.border_title = "Tokens"
                yield Plain(id="data-lengths-text")
        with VerticalScroll(id="data-rows", can_focus=True) as rows:
            rows.border_title = "First rows; lines marked > are to be predicted"
            yield Plain(id="data-rows-text")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(PlainTable).focus()

    def on_screen_resume(self) -> None:
        draft = self.draft
        self.query_one(TopBar).show(draft.preset.name)
        if self.is_reading or (self._asked and self._asked == asked_of(draft)):
            return
        old = "The report below is of earlier settings. " if self._asked else ""
        self._say(f"{old}r reads {asked_words(draft)}")

    @property
    def draft(self) -> Draft:
        """What the Plan screen has at hand."""
        return self.app.draft  # type: ignore[attr-defined, no-any-return]

    # --- reading -------------------------------------------------------------------------------------------------

    def action_read(self) -> None:
        if self.is_reading:
            return
        draft = self.draft
        try:
            resolved = self.services.resolve(draft.preset, draft.overrides, draft.hardware)
        except LongfitError as error:
            self._say(str(error), role="-error")
            return
        self.is_reading = True
        self._say(f"reading {asked_words(draft)}")
        # a daemon: a worker of Textual's would be waited for when the app is left, and a large set takes minutes
        threading.Thread(target=self._read, args=(resolved, asked_of(draft)), daemon=True).start()

    def _read(self, resolved: Any, asked: str) -> None:
        def tell(rows: int, file: str, share: float | None) -> None:
            self.post_message(Progressed(progress_words(rows, file, share)))

        try:
            self.post_message(Reported(asked, self.services.data_report(resolved, tell)))
        except DataRefused as refused:
            report = refused.report if "train" in refused.report else {"train": refused.report}
            self.post_message(Reported(asked, report, str(refused)))
        except LongfitError as error:
            self.post_message(Reported(asked, None, str(error)))

    def on_progressed(self, message: Progressed) -> None:
        if self.is_reading:
            self._say(message.words)

    def on_reported(self, message: Reported) -> None:
        self.is_reading = False
        if message.report is not None:
            self._asked, self._report = message.asked, message.report
            self._show(message.report)
            for pane in self.query(VerticalScroll):
                pane.scroll_home(animate=False)
        if message.problem:
            self._say(message.problem, role="-error")
        elif message.report is not None:
            self._say(" ".join([f"{token_words(message.report['train'])}.", *message.report["train"]["remarks"]]))

    # --- showing -------------------------------------------------------------------------------------------------

    def _show(self, report: Mapping[str, Any]) -> None:
        parts = [(name, report[name]) for name in ("train", "eval") if report.get(name)]
        self.query_one(PlainTable).show_rows(row for name, part in parts for row in _table_rows(name, part))
        ascii_only = bool(getattr(self.app, "ascii_only", False))
        width = self.query_one("#data-lengths").scrollable_content_region.width - 1  # where a scrollbar may come
        blocks = [_length_lines(name, part, width, ascii_only) for name, part in parts if part["lengths"]["max"]]
        self.query_one("#data-lengths-text", Plain).update("\n\n".join("\n".join(block) for block in blocks))
        self.query_one("#data-rows-text", Plain).update(_row_text(parts))

    def on_resize(self) -> None:
        if self._report is not None:
            self.call_after_refresh(self._show, self._report)

    def _say(self, words: str, *, role: str = "") -> None:
        status = self.query_one("#data-status", Plain)
        status.update(words)
        status.set_classes(role)


def _table_rows(name: str, part: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """Fates, shapes, files and notes, each under a key of its own."""
    rows = [(count, share, words) for words, count, share in fate_rows(part)]
    rows[0] = (*rows[0][:2], f"{rows[0][2]} ({name})")
    rows += [(format_count(count), "", f"shape {shape}") for shape, count in part["shapes"].items()]
    if len(part["files"]) > 1:
        rows += [(count, bad, path) for path, count, bad in file_rows(part)]
    rows += [(format_count(count), "note", words) for words, count in part["notes"].items()]
    return [(f"{name}-{index}", (f"{count:>8}", share, words)) for index, (count, share, words) in enumerate(rows)]


def _length_lines(name: str, part: Mapping[str, Any], width: int, ascii_only: bool) -> list[str]:
    """At most ``width`` cells wide where that can be: a bar that wraps says nothing."""
    words = [max(len(row[column]) for row in histogram_rows(part)) for column in (0, 1)]
    room = max(1, width - sum(words) - len("up to   "))
    bars = histogram_rows(part, width=room, ascii_only=ascii_only)
    return [
        f"{name}: {length_words(part)}",
        *(f"up to {upto:>{words[0]}} {count:>{words[1]}} {bar}" for upto, count, bar in bars),
        packing_words(part),
    ]


def _row_text(parts: list[tuple[str, Mapping[str, Any]]]) -> Content:
    """Bad rows first, for they are what has to be mended; then the first rows, what is predicted in bold."""
    lines: list[Content] = []
    for name, part in parts:
        if part["problems"]["count"]:
            lines.append(Content.styled(f"{name}: bad rows", "bold"))
            lines += [Content(f"  {visible(line)}") for line in problem_lines(part["problems"])]
            lines.append(Content(""))
    for name, part in parts:
        for row in part["preview"] if name == "train" else ():
            lines += [
                Content.styled(line, "bold") if line.startswith("  > ") else Content(line)
                for line in map(visible, preview_lines(row))
            ]
            lines.append(Content(""))
    return Content("\n").join(lines)
