"""The right half of the Plan screen: bars, verdict, parts, and everything else a plan says, for one Plan."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from app.tui.widgets.footprint_bar import FootprintBars
from app.tui.widgets.plain import Plain, visible, visible_lines
from app.tui.widgets.plain_table import PlainTable
from app.views.footprint import footprint_of
from app.views.format import ByteUnit, column_unit, format_bytes
from app.views.plan_view import (
    PartRow,
    batch_words,
    combination_of,
    device_word,
    difference_words,
    footprints,
    instant_rows,
    issue_lines,
    part_rows,
    peak_words,
    readings,
    speed_words,
    verdict_view,
)
from planner.types import Plan


class PlanPanel(VerticalScroll, can_focus=False):
    """``show`` draws a plan; ``refuse`` says why there is none and leaves the last one, marked as old."""

    def __init__(self) -> None:
        super().__init__(id="plan-panel")
        self.border_title = "Memory at the peak"

    def compose(self) -> ComposeResult:
        yield FootprintBars(id="bars")
        yield Plain(id="verdict")
        yield PlainTable(
            ("part", "bytes", "basis", "note"),
            id="parts",
            heads={"part": "  part", "bytes": "   size", "note": "mostly"},
            fills=("note",),
        )
        yield Plain(id="details")

    def show(self, plan: Plan, pinned: Plan | None = None) -> None:
        self.remove_class("-stale")
        gpu = plan.worst_gpu
        ghost = footprint_of(pinned.worst_gpu) if pinned is not None else None
        self.query_one(FootprintBars).show(footprints(plan), device=device_word(plan), ghost=ghost)
        view = verdict_view(plan)
        verdict = self.query_one("#verdict", Plain)
        errors = [words for severity, words in issue_lines(plan.issues) if severity == "error"]
        if errors:  # its memory is known, and it will not be launched like this
            verdict.update(
                Content.assemble(("REFUSED: ", "bold"), visible(errors[0]), f"\n{view.word}: {view.sentence}")
            )
        else:
            verdict.update(Content.assemble((f"{view.word}: ", "bold"), view.sentence))
        verdict.set_classes("-error" if errors else f"-{view.color_role}")
        unit = column_unit(gpu.used_bytes).name
        self.border_title = Content(f"{unit} at the peak, {device_word(plan)} {gpu.index}")
        self.border_subtitle = Content(peak_words(plan))
        self._show_parts(plan)
        self.query_one("#details", Plain).update(_details(plan, pinned))

    def _show_parts(self, plan: Plan) -> None:
        ascii_only = bool(getattr(self.app, "ascii_only", False))
        unit = column_unit(plan.worst_gpu.used_bytes)
        self.query_one(PlainTable).show_rows(
            (row.label, _part_texts(row, unit, ascii_only)) for row in part_rows(plan.worst_gpu)
        )

    @property
    def selected_part(self) -> str | None:
        return self.query_one(PlainTable).selected_key

    def refuse(self, words: str) -> None:
        self.add_class("-stale")
        verdict = self.query_one("#verdict", Plain)
        verdict.update(Content.assemble(("NOT PLANNED: ", "bold"), visible(words)))
        verdict.set_classes("-error")


def _part_texts(row: PartRow, unit: ByteUnit, ascii_only: bool) -> tuple[str | Text, ...]:
    label = Text(f"{row.letter if ascii_only else row.fill} {row.label}")
    label.stylize(row.color, 0, 1)
    return (label, f"{unit.format(row.bytes):>7}", row.basis, row.note)


def _details(plan: Plan, pinned: Plan | None) -> Content:
    """Everything below the parts, as blocks of lines."""
    gpu = plan.worst_gpu
    unit = column_unit(gpu.used_bytes)
    blocks: list[list[str]] = []
    if pinned is not None:
        blocks.append([f"{difference_words(pinned, plan)}: {combination_of(pinned)}"])
    blocks.append([f"{severity}: {words}" for severity, words in issue_lines(plan.issues)])
    blocks.append([f"{name} {format_bytes(size)}" for name, size in readings(gpu)])
    blocks.append(
        [f"allocated at each instant, {unit.name}"]
        + [
            f"  {row.label:<28}{unit.format(row.bytes):>7}{'  <- peak' if row.is_peak else ''}"
            for row in instant_rows(gpu)
        ]
    )
    blocks.append([f"batch: {batch_words(plan)}"])
    blocks.append([f"speed: {speed_words(plan)}"])
    blocks.append(
        [
            f"host memory {format_bytes(plan.host_bytes)} ({plan.host_verdict}),"
            f" disk {format_bytes(plan.disk_bytes)} ({plan.disk_verdict})"
        ]
    )
    return Content(visible_lines("\n\n".join("\n".join(block) for block in blocks if block)))
