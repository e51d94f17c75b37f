"""Pasting on the page, without a browser: findings as a table, a preset behind the form, and no file outside."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from app.gui.paste_actions import findings_html, save_paste, view_paste
from app.gui.plan_actions import FIELDS, view_plan
from app.services.importing.finding import Finding
from app.services.presets import load_preset
from planner.catalog.models import MODELS
from planner.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "data" / "swift_commands"
COMMAND = "swift sft --model Qwen/Qwen3-8B --dataset rows.jsonl --max_length 1024 --use_dora true --maxlen 3"
INDEX = {field.key: index for index, field in enumerate(FIELDS)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "page").mkdir()
    monkeypatch.chdir(tmp_path / "page")
    return tmp_path


def test_every_flag_stands_in_the_table_with_its_kind_in_words() -> None:
    view = view_paste(COMMAND)
    assert view.name == "qwen3-8b-1k-lora"
    rows = re.findall(r'<tr class="(\w+)"><th scope="row">([^<]+)</th><td><code>([^<]*)</code>', view.findings)
    assert ("impossible", "Not as written", "--use_dora true") in rows
    assert ("unknown", "Not understood", "--maxlen 3") in rows
    assert ("translated", "Carried over", "--max_length 1024") in rows


@pytest.mark.parametrize("name", ["two_gpu_ulysses", "one_gpu_everything", "one_gpu_fake_parallel", "modern_v4"])
def test_dirty_commands_load_the_form_and_plan(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text()
    view = view_paste(text)
    form = save_paste(text, view.name)
    assert form.preset == view.name
    assert form.values[INDEX["model"]] == load_preset(view.name).values["model"]
    shown = view_plan(form)
    assert f"longfit {'plan' if 'plan' in shown.command else 'train'} {view.name}" in shown.command
    assert "--set" not in shown.command
    assert re.search(r">(FITS|TIGHT|OVER|UNVERIFIED)<", shown.verdict)


def test_saved_twice_is_one_preset_and_a_name_is_never_taken_over() -> None:
    assert save_paste(COMMAND, "Mine 1").preset == "mine-1"
    assert save_paste(COMMAND, "mine-1").preset == "mine-1"
    with pytest.raises(ConfigError, match="exists already"):
        save_paste(COMMAND.replace("1024", "2048"), "mine-1")


def test_inference_and_nonsense_offer_nothing_to_save() -> None:
    view = view_paste((FOLDER / "infer_vllm.txt").read_text())
    assert view.name == ""
    assert "longfit infer MODEL PROMPT" in view.findings
    with pytest.raises(ConfigError, match="no preset"):
        save_paste("nothing here", "x")
    assert view_paste("  ").findings == ""


@pytest.mark.parametrize("path", ["{home}/secret", "../secret", "~/secret"])
@pytest.mark.parametrize("flag", ["--dataset", "--model", "--val_dataset"])
def test_paths_outside_are_refused_and_not_looked_at(
    path: str, flag: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    path = path.format(home=home)
    text = f"swift sft --model Qwen/Qwen3-8B --dataset rows.jsonl --max_length 64 {flag} {path}"
    absent = view_paste(text)
    (home / "secret").mkdir()
    (home / "secret" / "config.json").write_text(json.dumps(MODELS["Qwen/Qwen3-8B"]))
    assert view_paste(text) == absent
    with pytest.raises(ConfigError, match="is outside of"):
        save_paste(text, "x")
    assert not (home / "config").exists()


def test_pasted_markup_is_shown_not_obeyed() -> None:
    hostile = '<img src=x onerror="alert(1)">'
    assert "<img" not in findings_html([Finding(kind="unknown", flags=(hostile,), what=hostile, keys=((hostile, 1),))])
    assert "<img" not in view_paste(f"swift sft --model '{hostile}' --dataset a.jsonl").findings
