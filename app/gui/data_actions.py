"""What the Data tab does, without widgets: reads what the Plan tab has at hand and shows the report.

Nothing is read unasked. Called by data_tab.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from app.gui import data_html
from app.gui.data_reader import DataReader, Reading
from app.gui.messages import error_html
from app.gui.plan_actions import FIELDS, Form, address_of, resolve_form
from app.services.prepare_data import prepare_data
from app.views.data_report import asked_of, asked_words, token_words
from planner.errors import LongfitError

TAB = "data"
KEYS = ("data.train", "model", "max_length")  # that the tab has inputs of its own for; the others are the plan's
_INDICES = tuple(next(index for index, field in enumerate(FIELDS) if field.key == key) for key in KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataView:
    status: str
    report: str = ""
    is_reading: bool = False
    can_read: bool = True
    address: str = ""  # leads back here; empty while the form has a fault


class DataActions:
    def __init__(self, reader: DataReader | None = None) -> None:
        self.reader = reader or DataReader()

    def read(self, form: Form) -> None:
        """Begin to read. Raises: ConfigError for what the form has wrong, and while another set is being read."""
        resolved, draft = resolve_form(form)
        self.reader.start(
            asked_of(draft), lambda on_progress: prepare_data(resolved.config, on_progress=on_progress).report
        )

    def view(self, form: Form) -> DataView:
        """What is known of the data of the form, now. Never raises."""
        try:
            _, draft = resolve_form(form)
        except LongfitError as error:
            return DataView(status=error_html(error, word="NOTHING TO READ"), can_read=False)
        address = f"?tab={TAB}&{address_of(form, draft).removeprefix('?')}"
        reading = self.reader.find(asked_of(draft))
        if reading is None:
            return DataView(status=f"<p>Read reads {escape(asked_words(draft))}.</p>", address=address)
        if not reading.is_over:
            status = _progress(reading, asked_words(draft))
            return DataView(status=status, is_reading=True, can_read=False, address=address)
        report = data_html.report_html(reading.report) if reading.report is not None else ""
        return DataView(status=_outcome(reading), report=report, address=address)


def inputs_of(form: Form) -> list[Any]:
    """What the tab's own inputs show: the plan's."""
    return [form.values[index] for index in _INDICES]


def with_inputs(form: Form, inputs: tuple[Any, ...]) -> Form:
    """The form with what was typed on this tab."""
    changed = dict(zip(_INDICES, inputs, strict=True))
    return replace(form, values=tuple(changed.get(index, value) for index, value in enumerate(form.values)))


def field_index(key: str) -> int:
    return _INDICES[KEYS.index(key)]


def _progress(reading: Reading, asked: str) -> str:
    value = "" if reading.share is None else f' value="{min(reading.share, 1.0):.3f}"'
    return (
        f'<p role="status">Reading {escape(asked)}</p><div class="progress">'
        f'<progress max="1"{value} aria-label="share of the data read"></progress>'
        f"<span>{escape(reading.words)}</span></div>"
    )


def _outcome(reading: Reading) -> str:
    error, report = reading.problem, reading.report
    if error is not None and report is not None:
        if report["train"]["problems"]["count"]:  # the report names the bad rows
            error = LongfitError(error.what, fix=error.fix)
        return error_html(error, word="REFUSED")
    if error is not None:
        return error_html(error, word="NOT READ")
    assert report is not None
    train: Mapping[str, Any] = report["train"]
    words = " ".join([f"{token_words(train)}.", *train["remarks"]])
    return (
        '<div role="status" class="verdict role-success"><strong class="word">READ</strong> '
        f"<span>{escape(words)}</span></div>"
    )
