"""What the Runs tab shows and does: live states, what can be done with each run, two runs side by side."""

from __future__ import annotations

import re
from pathlib import Path

import gradio as gr
import pytest

from app.gui.clicks import clicked
from app.gui.run_actions import RunActions
from app.gui.runs_actions import RunsActions, address_of, compared_in, with_mark
from app.gui.runs_tab import build_runs_tab
from core.run.config_file import FILE_NAME
from core.run.control import take_commands
from planner.errors import ConfigError, RunNotFound
from tests.app.gui.run_folder import attend, end_run, make_run


def row_of(table: str, run_id: str) -> str:
    return next(row for row in table.split("<tr>") if f'data-of="{run_id}"' in row)


def acts(row: str) -> list[str]:
    return re.findall(r'data-act="(\w+)"', row)


def click(act: str, run_id: str) -> gr.EventData:
    return gr.EventData(None, {"act": act, "of": run_id})


def test_an_empty_folder_says_how_to_start_a_run(tmp_path: Path) -> None:
    table = RunsActions(RunActions(tmp_path / "runs")).table("")
    assert "Launch" in table
    assert "longfit train PRESET" in table
    assert "<table" not in table


def test_each_run_offers_what_can_be_done_with_it_now(tmp_path: Path) -> None:
    done, live, lost, failed = (make_run(tmp_path, num_steps=steps) for steps in (40, 10, 11, 12))
    end_run(done, "done")
    attend(live)
    end_run(failed, "failed", kind="oom")
    actions = RunsActions(RunActions(tmp_path))
    table = actions.table("")
    rows = {run.id: row_of(table, run.id) for run in (done, live, lost, failed)}
    assert ">DONE<" in rows[done.id]
    assert ">RUNNING<" in rows[live.id]
    assert ">LOST<" in rows[lost.id]
    assert "out of memory" in rows[failed.id]
    assert acts(rows[done.id]) == ["open", "compare"]
    assert acts(rows[live.id]) == ["open", "stop", "compare"]
    assert acts(rows[lost.id]) == acts(rows[failed.id]) == ["open", "resume", "compare"]
    assert all(words in rows[lost.id] for words in ("11 of 100", "1.2773", "1,900 tokens/s"))
    end_run(live, "stopped")  # its supervisor, this process, is still there
    after = row_of(actions.table(""), live.id)
    assert ">STOPPED<" in after
    assert "no resume" in after
    assert acts(after) == ["open", "compare"]


def test_a_folder_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / FILE_NAME).write_text("max_length: [", encoding="utf-8")
    table = RunsActions(RunActions(tmp_path)).table("")
    assert "<strong>broken</strong> cannot be read" in table


def test_a_name_in_a_run_stays_text(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    config = run.path / FILE_NAME
    config.write_text(re.sub(r"(?m)^name: .*$", "name: <script>x", config.read_text("utf-8")), encoding="utf-8")
    table = RunsActions(RunActions(tmp_path)).table("")
    assert "&lt;script&gt;x" in table
    assert "<script" not in table


def test_compare_is_pressed_on_two_runs_and_again_takes_the_mark_away() -> None:
    first = with_mark(address_of(), "a")
    assert compared_in(first) == ("a",)
    both = with_mark(first, "b")
    assert compared_in(both) == ("a", "b")
    assert compared_in(with_mark(both, "a")) == ("b",)
    assert compared_in(with_mark(both, "c")) == ("c",)
    assert compared_in("?compare=x&compare=x&compare=y&compare=z") == ("x", "y")


def test_a_comparison_has_both_losses_results_and_settings(tmp_path: Path) -> None:
    long, short = make_run(tmp_path, num_steps=40), make_run(tmp_path, num_steps=25)
    config = short.path / FILE_NAME
    text = config.read_text("utf-8")
    assert "seed: 42" in text
    config.write_text(text.replace("seed: 42", "seed: 7"), encoding="utf-8")
    actions = RunsActions(RunActions(tmp_path))
    assert "press Compare of another run" in actions.comparison(address_of((long.id,)))
    shown = actions.comparison(address_of((long.id, short.id)))
    assert f"first {long.id[-4:]}, last 1." in shown
    assert f"second {short.id[-4:]}, last 1." in shown
    assert "40 of 100</td><td>25 of 100" in shown
    assert '<th scope="row">seed</th><td>42</td><td>7</td>' in shown
    assert 'aria-pressed="true"' in row_of(actions.table(address_of((long.id, short.id))), short.id)
    assert "NO COMPARISON" in actions.comparison(address_of((long.id, "../etc")))


def test_a_click_stops_opens_and_refuses(tmp_path: Path) -> None:
    live, done = make_run(tmp_path), make_run(tmp_path)
    attend(live)
    end_run(done, "done")
    with gr.Blocks():
        tab = build_runs_tab(RunsActions(RunActions(tmp_path)))
    message, _, opened = tab.act(address_of(), click("stop", live.id))
    assert "Asked to save and stop" in message
    assert not opened
    assert [command.mode for command in take_commands(live.control)[0]] == ["save"]
    assert tab.act(address_of(), click("open", done.id))[2] == done.id
    assert "NOT DONE" in tab.act(address_of(), click("resume", done.id))[0]
    assert "There is no run" in tab.act(address_of(), click("stop", "../.."))[0]
    with pytest.raises(ConfigError, match="nothing that can be done"):
        tab.actions.command("delete", done.id)
    with pytest.raises(RunNotFound):
        tab.actions.command("resume", str(done.path))
    assert clicked(gr.EventData(None, None)) == ("", "")


def test_what_did_not_change_is_not_sent_again(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    end_run(run, "stopped")
    with gr.Blocks():
        tab = build_runs_tab(RunsActions(RunActions(tmp_path)))
    table, comparison, drawn = tab.show(address_of(), None)
    assert run.id in table
    assert comparison == ""
    again = tab.show(address_of(), drawn)
    assert again[:2] == [gr.skip(), gr.skip()]
    marked = tab.show(address_of((run.id,)), drawn)
    assert 'aria-pressed="true"' in marked[0]
    assert "another run" in marked[1]
