"""What the Presets tab shows and does: verdicts, a preset in the words of each tool, copies, reasons for refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gradio as gr
import pytest

from app.gui import presets_actions
from app.gui.plan_actions import FIELDS, load_form
from app.gui.presets_tab import _pick, _saver, show
from app.services.importing.export_targets import TARGETS
from app.services.importing.exported import export_preset
from app.services.planning import plan_preset
from app.services.presets import load_preset, preset_names, preset_text
from app.views.plan_view import short_verdict
from planner.errors import ConfigError

PRESET = "qwen2.5-7b-16k-2x24g"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder, and no preset of the person who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_preset(project: Path, name: str, text: str) -> None:
    folder = project / ".longfit" / "presets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def test_every_preset_that_ships_is_listed_before_anything_is_planned() -> None:
    table = presets_actions.table(with_verdicts=False)
    names = re.findall(r'data-act="show" data-of="([^"]+)"', table)
    assert names == list(preset_names())
    assert "2xRTX-4090" in table
    assert "%" not in table


def test_verdicts_are_those_of_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = load_preset(PRESET)
    monkeypatch.setattr(presets_actions, "list_presets", lambda: (preset,))
    here, there = presets_actions.verdicts_of(preset)
    assert there == short_verdict(plan_preset(preset).plan)
    assert re.search(r"\d %$", here)
    table = presets_actions.table(with_verdicts=True)
    assert f"<div>{here}</div>" in table
    assert f"<div>{there}</div>" in table


def test_what_is_wrong_with_a_preset_stands_where_its_verdict_would(project: Path) -> None:
    write_preset(project, "many", "model: Qwen/Qwen2.5-7B-Instruct\nmax_length: 1024\nhardware: {count: many}\n")
    assert presets_actions.verdicts_of(load_preset("many"))[0] == "many: hardware.count is 'many'."


def test_an_unreadable_preset_is_named_and_the_others_are_listed(project: Path) -> None:
    write_preset(project, "bad", "- <b>no mapping")
    write_preset(project, "good", "model: m\ndescription: <b>bold\n")
    table = presets_actions.table(with_verdicts=False)
    assert "bad.yaml is not a preset" in table
    assert 'data-of="good"' in table
    assert 'data-of="bad"' not in table
    assert "&lt;b&gt;bold" in table
    assert "<b>" not in table


def test_each_target_is_the_text_that_the_exporter_writes() -> None:
    preset = load_preset(PRESET)
    assert presets_actions.view_preset(PRESET, "yaml").text == preset_text(preset)
    for target in TARGETS:
        view = presets_actions.view_preset(PRESET, target)
        assert view.text == export_preset(preset, target).text
        assert view.is_command == (target == "swift")
    text = show(PRESET, "swift")[1]
    assert text["language"] == "shell"
    assert "swift sft" in text["value"]


def test_what_a_tool_cannot_say_is_listed(project: Path) -> None:
    write_preset(project, "fake", "model: Qwen/Qwen2.5-7B-Instruct\nmax_length: 1024\ndata: {train: [a.jsonl]}\n"
                 "fake_parallel: 2\n")  # fmt: skip
    assert "fake_parallel" in presets_actions.view_preset("fake", "axolotl").findings
    write_preset(project, "bare", "max_length: 1024\n")
    assert "names no model" in presets_actions.view_preset("bare", "axolotl").findings


def test_a_path_is_no_preset(project: Path) -> None:
    (project / "secret.yaml").write_text("model: hidden\n", encoding="utf-8")
    view = presets_actions.view_preset("secret.yaml", "yaml")
    assert "NO PRESET" in view.findings
    assert not view.text
    with pytest.raises(ConfigError, match="no preset named"):
        presets_actions.save_copy("secret.yaml", "mine")


def test_a_copy_and_the_plan_are_saved_among_ones_own_and_never_over_another(project: Path) -> None:
    saved = project / "config" / "longfit" / "presets"
    assert "Saved as" in presets_actions.save_copy(PRESET, "mine")
    assert load_preset("mine").values == load_preset(PRESET).values
    form = load_form(PRESET, overrides={"max_length": 4096})
    told, chosen, offered = _saver(lambda *given: presets_actions.save_plan(*given))(form, "short")
    assert "Saved as" in told
    assert chosen["value"] == "short"
    assert "short" in offered["choices"]
    assert load_preset("short").values == {**load_preset(PRESET).values, "max_length": 4096}
    before = (saved / "mine.yaml").read_bytes()
    assert "exists already" in _saver(presets_actions.save_copy)(PRESET, "mine")[0]
    assert (saved / "mine.yaml").read_bytes() == before
    assert "cannot be a preset" in _saver(presets_actions.save_copy)(PRESET, "../out")[0]
    assert sorted(path.name for path in saved.iterdir()) == ["mine.yaml", "short.yaml"]


def test_a_plan_with_a_path_outside_of_the_folder_is_not_saved(project: Path) -> None:
    form = load_form(PRESET)
    values = ["/etc/passwd" if field.key == "data.train" else old for field, old in zip(FIELDS, form.values)]
    typed = type(form)(preset=form.preset, gpu=form.gpu, count=form.count, values=tuple(values))
    with pytest.raises(ConfigError, match="outside"):
        presets_actions.save_plan(typed, "leak")
    assert not (project / "config").exists()


def test_the_address_leads_back_and_what_it_has_wrong_is_left_out() -> None:
    assert presets_actions.shown_in(presets_actions.address_of(PRESET, "hf")) == (PRESET, "hf")
    name, target = presets_actions.shown_in("?show=../../etc&as=pickle")
    assert name in preset_names()
    assert target == "yaml"


def test_only_a_click_on_a_name_chooses() -> None:
    assert _pick(gr.EventData(None, {"act": "show", "of": PRESET})) == PRESET
    assert _pick(gr.EventData(None, json.loads("[]"))) == gr.skip()
