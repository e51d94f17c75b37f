"""What the Data tab shows and does: the plan's data, read in the background, reported as the other faces report it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import gradio as gr
import pytest

from app.gui import data_actions
from app.gui.data_actions import DataActions, inputs_of, with_inputs
from app.gui.data_html import report_html
from app.gui.data_reader import DataReader
from app.gui.data_tab import build_data_tab
from app.gui.plan_actions import Form, form_of_query, load_form
from app.gui.plan_form import build_plan_form, inputs_from_form
from app.services.prepare_data import PreparedData
from app.views.data_report import data_report_text
from core.data.report import DataRefused
from planner.errors import ConfigError

PRESET = "qwen2.5-7b-16k-2x24g"


def part(**changes: Any) -> dict[str, Any]:
    """One set as core/data/report.py describes it."""
    return {
        "rows": {"read": 4, "kept": 3, "truncated": 0, "split": 0, "dropped": 0, "bad": 1, "blank_lines": 2},
        "tokens": {"read": 400, "kept": 300, "targets": 120},
        "lengths": {"min": 40, "max": 160, "median": 100, "mean": 100.0, "p95": 150,
                    "histogram": [{"upto": 64, "rows": 1}, {"upto": 128, "rows": 2}]},
        "max_length": 1024,
        "packing": {"length": 1024, "rows_without": 3, "rows_with": 1, "fill_without": 0.1, "fill_with": 0.3},
        "shapes": {"messages": 3}, "notes": {}, "remarks": ["Mind <this>."], "sets": [],
        "files": [{"path": "<b>.jsonl", "rows": 4, "bad": 1}, {"path": "b.jsonl", "rows": 1, "bad": 0}],
        "problems": {"count": 1, "first": [{"file": "<b>.jsonl", "line": 3, "reason": "not valid JSON"}]},
        "preview": [{"origin": "b.jsonl:1", "shape": "messages", "tokens": 5, "targets": 2,
                     "segments": [["<|user|>\x1b[2J", False], ["yes <i>", True]]}],
        **changes,
    }  # fmt: skip


REPORT: Mapping[str, Any] = {"train": part(), "eval": None, "stores": {}}


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Reading is done when the event is set; it tells its progress before."""
    go = threading.Event()

    def prepare(config: Any, *, on_progress: Any) -> PreparedData:
        on_progress(1200, "a.jsonl", 0.25)
        assert go.wait(30)
        return PreparedData(train_store="", eval_store=None, report=dict(REPORT))

    monkeypatch.setattr(data_actions, "prepare_data", prepare)
    yield go
    go.set()


def wait_until_over(actions: DataActions, form: Form) -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon and "_fill" in thread.name:
            thread.join(30)
    assert not actions.view(form).is_reading


def test_nothing_is_read_unasked_and_then_in_the_background(prepared: threading.Event) -> None:
    actions, form = DataActions(), load_form(PRESET)
    first = actions.view(form)
    assert "train.jsonl for rows of 16384 tokens of Qwen/Qwen2.5-7B-Instruct" in first.status
    assert first.can_read
    assert not first.report
    actions.read(form)
    during = actions.view(form)
    assert during.is_reading
    assert not during.can_read
    with pytest.raises(ConfigError, match="being read already"):
        actions.read(load_form(PRESET, overrides={"max_length": 64}))
    assert actions.view(load_form(PRESET, overrides={"max_length": 64})).can_read
    prepared.set()
    wait_until_over(actions, form)
    after = actions.view(form)
    assert ">READ<" in after.status
    assert "300 tokens kept of 400 read, 120 to be predicted (40 %). Mind &lt;this&gt;." in after.status
    assert after.report == report_html(REPORT)
    assert not actions.view(load_form(PRESET, overrides={"max_length": 64})).report


def test_progress_is_told(prepared: threading.Event) -> None:
    actions, form = DataActions(), load_form(PRESET)
    actions.read(form)
    while "1,200 rows read, now a.jsonl" not in (status := actions.view(form).status):
        assert 'class="progress"' in status
    assert 'value="0.250"' in status


def test_refused_rows_have_a_report_and_a_missing_file_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([
        DataRefused("1 row of 4 cannot be used.", why="<b>.jsonl:3", fix="Mend it.", report=part()),
        ConfigError("There is no file x.jsonl."), RuntimeError("a fault"),
    ])  # fmt: skip

    def prepare(config: Any, *, on_progress: Any) -> PreparedData:
        raise next(errors)

    monkeypatch.setattr(data_actions, "prepare_data", prepare)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    actions, form = DataActions(), load_form(PRESET)
    actions.read(form)
    wait_until_over(actions, form)
    refused = actions.view(form)
    assert ">REFUSED<" in refused.status
    assert "1 row of 4 cannot be used. Mend it." in refused.status
    assert "&lt;b&gt;.jsonl:3: not valid JSON" in refused.report
    for words in ("There is no file x.jsonl.", "Reading ended without a report."):
        actions.read(form)
        wait_until_over(actions, form)
        view = actions.view(form)
        assert ">NOT READ<" in view.status
        assert words in view.status
        assert not view.report


def test_the_report_has_the_numbers_of_the_command_line_and_stays_text() -> None:
    html, text = report_html(REPORT), data_report_text(REPORT)
    for words in ("tokens per row: 40 to 160, median 100, mean 100.0, 95 % are at most 150",
                  "rows of max_length 1,024: 3 (10 % full) without packing, 1 (30 % full) with packing"):  # fmt: skip
        assert words in text
        assert words in html
    assert 'kept whole</th><td class="number">3</td><td>75 %' in html
    assert 'class="number">128</th><td class="number">2</td><td class="meter"><span style="width:100.0%"' in html
    assert "<b>  &gt; yes &lt;i&gt;</b>" in html
    assert "\\x1b[2J" in html
    assert "<i>" not in html
    assert "<b>.jsonl" not in html


def test_inputs_of_the_tab_are_those_of_the_plan_and_the_address_leads_back() -> None:
    form = load_form(PRESET)
    assert inputs_of(form) == ["train.jsonl", "Qwen/Qwen2.5-7B-Instruct", 16384]
    typed = with_inputs(form, ("a.jsonl\nb.jsonl#5", "Qwen/Qwen2.5-7B-Instruct", 512))
    view = DataActions().view(typed)
    assert "a.jsonl, b.jsonl#5 for rows of 512 tokens" in view.status
    assert view.address.startswith("?tab=data&preset=")
    assert form_of_query(view.address) == typed


def test_a_path_outside_of_the_folder_is_not_read() -> None:
    actions, form = DataActions(), with_inputs(load_form(PRESET), ("/etc/passwd", "Qwen/Qwen2.5-7B-Instruct", 512))
    view = actions.view(form)
    assert "outside" in view.status
    assert not view.can_read
    with pytest.raises(ConfigError, match="outside"):
        actions.read(form)


def test_old_reports_are_forgotten() -> None:
    reader = DataReader()
    for number in range(10):
        reader.start(str(number), lambda _: REPORT).join(30)
    assert reader.find("1") is None
    assert reader.find("9") is not None


def test_a_report_that_did_not_change_is_not_sent_again(prepared: threading.Event) -> None:
    prepared.set()
    actions, form = DataActions(), load_form(PRESET)
    with gr.Blocks():
        tab = build_data_tab(actions, build_plan_form())
    given = [*inputs_from_form(form), *inputs_of(form)]
    tab.read(*given, "")
    wait_until_over(actions, form)
    _, report, button, address, timer, drawn = tab.show(*given, "")
    assert "kept whole" in report
    assert button["interactive"]
    assert address.startswith("?tab=data")
    assert not timer.active
    assert tab.show(*given, drawn)[1] == gr.skip()
