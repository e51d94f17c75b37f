"""Presets are found by name or path, overridden by dotted keys, and saved only when they could be planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.cli.main import main
from app.services.presets import (
    list_presets,
    load_preset,
    merge_overrides,
    parse_override,
    parse_preset,
    preset_text,
    save_preset,
    unreadable_presets,
)
from planner.errors import ConfigError


@pytest.fixture(autouse=True)
def _own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def test_the_built_in_presets_are_there_and_say_what_they_are_for() -> None:
    presets = {preset.name: preset for preset in list_presets()}
    assert {"demo-smollm2", "qwen2.5-7b-8k-1x24g", "qwen2.5-7b-16k-2x24g", "llama3.1-8b-64k-1x80g"} <= set(presets)
    assert len(presets) >= 6
    for preset in presets.values():
        assert preset.origin == "built-in"
        assert preset.description
        assert preset.hardware["gpu"]


def test_an_unknown_preset_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"no preset named 'qwen2\.5-7b-8k'.*Did you mean qwen2\.5-7b-8k-1x24g"):
        load_preset("qwen2.5-7b-8k")


def test_an_unknown_home_folder_is_a_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"no preset file ~nobody-here/run\.yaml"):
        load_preset("~nobody-here/run.yaml")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no preset file nowhere/run\.yaml"):
        load_preset("nowhere/run.yaml")


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", ("is a model, not a preset", "longfit fit Qwen/Qwen2.5-7B-Instruct")),
        ("rows.jsonl", ("is data, not a preset", "--set data.train=[rows.jsonl]")),
        ("folder", ("folder is a folder",)),
        ("bytes.yaml", ("cannot be read", "UTF-8")),
    ],
)
def test_what_is_no_preset_is_called_what_it_is(tmp_path: Path, name: str, facts: tuple[str, ...]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError) as caught:
        load_preset(name)
    for fact in facts:
        assert fact in str(caught.value)


def test_one_broken_file_hides_no_other_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / ".longfit" / "presets"
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("a: [1\n")
    assert "demo-smollm2" in {preset.name for preset in list_presets()}
    (error,) = unreadable_presets()
    assert "broken.yaml, line 2" in error.what
    assert main(["preset", "list"]) == 0
    said = capsys.readouterr()
    assert "demo-smollm2" in said.out
    assert "broken.yaml, line 2" in said.err


def test_a_folder_that_cannot_be_written_is_a_fault_of_the_machine(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert main(["preset", "save", "demo-smollm2", "mine"]) == 5
    assert "could not be written to" in capsys.readouterr().err


def test_a_changed_preset_says_no_more_what_it_said_of_itself(capsys) -> None:
    assert main(["preset", "save", "demo-smollm2", "mine", "--set", "max_length=512"]) == 0
    changed = load_preset("mine")
    assert changed.description == "demo-smollm2 with other max_length"
    assert changed.measured == ()
    assert main(["preset", "save", "demo-smollm2", "same"]) == 0
    assert load_preset("same").description == load_preset("demo-smollm2").description


@pytest.mark.parametrize("name", ["", ".hidden", "-x", "a/b", ".."])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a preset's name"):
        save_preset(replace(load_preset("demo-smollm2"), name=name))


def test_a_saved_preset_is_found_by_name_and_holds_the_changes(tmp_path: Path) -> None:
    preset = load_preset("qwen2.5-7b-8k-1x24g")
    changed = parse_preset(
        preset_text(preset, {"max_length": 4096, "lora.rank": 8}), path=tmp_path / "x", origin="file"
    )
    named = type(changed)(**{**{f: getattr(changed, f) for f in changed.__slots__}, "name": "mine"})
    save_preset(named)
    again = load_preset("mine")
    assert again.origin == "user"
    assert again.values["max_length"] == 4096
    assert again.values["lora"]["rank"] == 8
    assert again.values["lora"]["targets"] == "all-linear"
    with pytest.raises(ConfigError, match="exists already"):
        save_preset(named)


@pytest.mark.parametrize("name", ["../out", "", ".hidden", "a/b"])
def test_a_name_that_leaves_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    preset = load_preset("demo-smollm2")
    with pytest.raises(ConfigError, match="cannot be a preset's name"):
        save_preset(type(preset)(name=name, description="", values=preset.values))


def test_overrides_reach_into_mappings_switch_on_and_take_away() -> None:
    values = {"lora": {"rank": 8, "alpha": 16}, "packing": True, "fused_loss": True}
    merged = merge_overrides(values, {"lora.rank": 4, "fused_loss.chunk_tokens": 64, "packing": None, "ring": 2})
    assert merged == {"lora": {"rank": 4, "alpha": 16}, "fused_loss": {"chunk_tokens": 64}, "ring": 2}
    assert values["lora"] == {"rank": 8, "alpha": 16}


def test_a_knob_beside_a_bare_main_knob_keeps_its_value() -> None:
    assert merge_overrides({"lora": 64}, {"lora.alpha": 16}) == {"lora": {"rank": 64, "alpha": 16}}


def test_an_override_is_parsed_like_a_preset() -> None:
    assert parse_override("learning_rate=1e-5") == ("learning_rate", 1e-5)
    assert parse_override("data.train=[a.jsonl, b.jsonl]") == ("data.train", ["a.jsonl", "b.jsonl"])
    with pytest.raises(ConfigError, match="no '='"):
        parse_override("learning_rate")
