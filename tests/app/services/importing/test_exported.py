"""A preset survives the way into another tool's words and back; what the tool cannot say is told."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest
import yaml

from app.services.importing.effective import effective_values
from app.services.importing.export_targets import TARGETS
from app.services.importing.exported import export_preset
from app.services.importing.imported import DIALECTS, import_text
from app.services.presets import list_presets, load_preset
from planner.errors import ConfigError
from planner.types import Preset
from tests.app.services.importing.cases import CASES

FOLDER = Path(__file__).parents[3] / "data" / "swift_commands"
FILES = [path for path in sorted(FOLDER.glob("*.txt")) if not path.stem.startswith("infer")]
PRESETS = [preset.name for preset in list_presets() if preset.origin == "built-in"]


def lost_keys(exported) -> set[str]:
    return {key for finding in exported.findings if finding.kind == "impossible" for key, _ in finding.keys}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_command_to_preset_to_swift_to_preset_is_stable(path, facts):
    first = import_text(path.read_text("utf-8"), facts=facts).preset
    exported = export_preset(first, "swift", facts=facts)
    second = import_text(exported.text, facts=facts).preset
    assert effective_values(second.values, facts) == effective_values(first.values, facts)
    assert (second.name, dict(second.hardware), second.description) == (
        first.name, dict(first.hardware), first.description,
    )  # fmt: skip
    again = export_preset(second, "swift", facts=facts)
    assert again.text == exported.text
    assert import_text(again.text, facts=facts).preset == second


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PRESETS)
def test_a_built_in_preset_comes_back_from_every_tool(name, target, facts):
    preset = load_preset(name)
    back = import_text(export_preset(preset, target, facts=facts).text, facts=facts)
    assert back.dialect == target
    assert effective_values(back.preset.values, facts) == effective_values(preset.values, facts)
    assert (back.preset.name, dict(back.preset.hardware)) == (preset.name, dict(preset.hardware))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_was_imported_comes_back_from_every_tool(case, unplanned):
    preset = import_text(case.text, facts=unplanned).preset
    wanted = effective_values(preset.values, unplanned)
    if not (wanted["model"] and wanted["max_length"] and wanted["data.train"]):
        return
    for target in TARGETS:
        back = import_text(export_preset(preset, target, facts=unplanned).text, facts=unplanned).preset
        assert effective_values(back.values, unplanned) == wanted, target


def test_swift_says_what_it_can_and_the_rest_is_told(facts):
    exported = export_preset(load_preset("qwen2.5-7b-16k-2x24g"), "swift", facts=facts)
    assert lost_keys(exported) == {"fused_loss"}
    command = exported.text[exported.text.index("NPROC_PER_NODE") :].replace("\\\n", " ")
    words = shlex.split(command)
    assert words[:3] == ["NPROC_PER_NODE=2", "swift", "sft"]
    pairs = dict(itertools.pairwise(words))
    assert pairs["--sequence_parallel_size"] == "2"
    assert pairs["--lora_rank"] == "64"
    assert pairs["--tuner_type"] == "lora"
    assert pairs["--attn_impl"] == "flash_attn"  # ms-swift packs in a flash kernel only
    assert "# longfit: fused_loss=true" in exported.text


@pytest.mark.parametrize("target", ["axolotl", "llamafactory", "hf"])
def test_a_document_is_yaml_that_other_loaders_read_with_the_same_numbers(target, facts):
    exported = export_preset(load_preset("qwen2.5-0.5b-full-16k-1x24g"), target, facts=facts)
    body = yaml.safe_load(exported.text)
    assert body["learning_rate"] == 2e-5
    assert body["gradient_accumulation_steps"] == 4


def test_only_names_that_the_other_tool_has_are_written(facts):
    for target in TARGETS:
        for name in PRESETS:
            exported = export_preset(load_preset(name), target, facts=facts)
            names = {re.match(r"(?:--)?(\w+)", finding.flags[0])[1] for finding in exported.findings if finding.flags}
            assert names <= set(DIALECTS[target].rules)


def test_text_with_quotes_lines_and_dollars_survives(facts):
    prompt = 'Say "no", don\'t say $HOME;\nor \\ --that, 「好」 # not a comment'
    preset = Preset(
        name="odd", description="", values={
            "model": "Qwen/Qwen3-8B", "max_length": 1024,
            "data": {"train": ["my file.jsonl", "x.jsonl#3"], "system": prompt}, "lora": {"rank": 8},
        },
    )  # fmt: skip
    for target in TARGETS:
        back = import_text(export_preset(preset, target, facts=facts).text, facts=facts).preset
        assert back.values["data"]["system"] == prompt, target
        assert back.values["data"]["train"] == ["my file.jsonl", "x.jsonl#3"], target


def test_a_preset_that_names_no_data_cannot_be_written(facts):
    preset = Preset(name="empty", description="", values={"model": "Qwen/Qwen3-8B", "max_length": 1024, "data": {}})
    with pytest.raises(ConfigError, match=r"data\.train"):
        export_preset(preset, "swift", facts=facts)
    with pytest.raises(ConfigError, match="swift, axolotl, llamafactory, hf"):
        export_preset(preset, "unsloth", facts=facts)
