"""Every name that a dialect knows gets an answer, whatever value stands behind it, and the answer is honest."""

from __future__ import annotations

import itertools

import pytest

from app.services.importing.environment import LAUNCHER, VARIABLES
from app.services.importing.imported import DIALECTS, import_pasted
from app.services.importing.inference import RULES as INFERENCE
from app.services.importing.pasted import Pasted, Setting
from app.services.preset_keys import DATA_KEYS, RUN_KEYS

PROGRAMS = {"swift": "swift", "llamafactory": "llamafactory", "axolotl": "axolotl", "hf": "trl"}
VALUES = (
    True, "False", "0", "0.5", "-3", "lora", "", '{"type": "yarn"}', ("a", "b"), None, 7, [{"path": "a.jsonl"}],
    {"factor": 2.0}, "1e999",
)  # fmt: skip
BASE = {
    "swift": (("model", "Qwen/Qwen3-8B"), ("dataset", "a.jsonl"), ("max_length", "1024")),
    "llamafactory": (("model_name_or_path", "Qwen/Qwen3-8B"), ("dataset", "a.jsonl"), ("cutoff_len", 1024)),
    "axolotl": (("base_model", "Qwen/Qwen3-8B"), ("datasets", [{"path": "a.jsonl"}]), ("sequence_len", 1024)),
    "hf": (("model_name_or_path", "Qwen/Qwen3-8B"), ("train_file", "a.jsonl"), ("max_length", 1024)),
}


def paste(dialect: str, name: str, value: object) -> Pasted:
    settings = {key: Setting(name=key, value=given, written=f"--{key} {given}") for key, given in BASE[dialect]}
    settings[name] = Setting(name=name, value=value, written=f"--{name} {value}")
    return Pasted(source="command", program=PROGRAMS[dialect], verb="sft", settings=tuple(settings.values()))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_name_with_every_value_is_told_and_gives_a_preset_of_known_keys(dialect, unplanned):
    known = {key.name for key in RUN_KEYS} | set(unplanned.registry)
    data_keys = {key.name for key in DATA_KEYS}
    for name, value in itertools.product(DIALECTS[dialect].rules, VALUES):
        pasted = paste(dialect, name, value)
        imported = import_pasted(pasted, facts=unplanned)
        told = {flag for finding in imported.findings for flag in finding.flags}
        assert {setting.written for setting in pasted.settings} <= told, (name, value)
        assert set(imported.preset.values) <= known, (name, value)
        assert set(imported.preset.values["data"]) <= data_keys, (name, value)
        for optimization in set(unplanned.registry) & set(imported.preset.values):
            given = imported.preset.values[optimization]
            if isinstance(given, dict):
                assert set(given) <= set(unplanned.knobs(optimization)), (name, value)


def test_every_flag_of_inference_is_told(unplanned):
    for name, value in itertools.product(INFERENCE, VALUES):
        setting = Setting(name=name, value=value, written=f"--{name} {value}")
        pasted = Pasted(source="command", program="swift", verb="infer", settings=(setting,))
        imported = import_pasted(pasted, facts=unplanned)
        assert setting.written in {flag for finding in imported.findings for flag in finding.flags}, (name, value)
        assert imported.command[:2] == ("longfit", "infer")


@pytest.mark.parametrize(("where", "names"), [("environment", VARIABLES), ("launcher", LAUNCHER)])
def test_every_variable_and_launcher_flag_is_told(where, names, unplanned):
    for name, value in itertools.product(names, VALUES):
        setting = Setting(name=name, value=value, written=f"{name}={value}")
        settings = paste("swift", "max_length", "1024").settings
        pasted = Pasted(source="command", program="swift", verb="sft", settings=settings, **{where: (setting,)})
        imported = import_pasted(pasted, facts=unplanned)
        told = {flag for finding in imported.findings for flag in finding.flags}
        assert setting.written in told, (name, value)
        assert imported.preset.hardware["count"] >= 1


def test_what_is_impossible_says_why_or_what_to_do(unplanned):
    for dialect in DIALECTS.values():
        for name in dialect.rules:
            for value in ("true", "7"):
                for finding in import_pasted(paste(dialect.name, name, value), facts=unplanned).findings:
                    if finding.kind == "impossible":
                        assert finding.what, name
                        assert finding.why or finding.fix, name
                    if finding.kind in ("ignored", "default") and finding.flags:
                        assert finding.keys or finding.why or finding.what, name


def test_the_tables_speak_of_names_that_settings_can_have():
    for dialect in DIALECTS.values():
        assert all(name == name.lower().replace("-", "_") for name in dialect.rules)
        assert set(dialect.rules) >= dialect.markers
