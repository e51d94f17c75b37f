"""Every pasted text of cases.py and every file of tests/data/swift_commands becomes what it should, flag by flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.services.importing.draft import nested
from app.services.importing.imported import Imported, import_text
from app.services.importing.paste import read_paste
from tests.app.services.importing.cases import CASES, Case

FOLDER = Path(__file__).parents[3] / "data" / "swift_commands"


def value_at(imported: Imported, dotted: str):
    """What the preset says; a mapping's knob, or the scalar that stands for the main knob."""
    name, _, knob = dotted.partition(".")
    value = imported.preset.values.get(name)
    if not knob:
        return value
    return value.get(knob) if isinstance(value, dict) else None


def kinds_of(imported: Imported, part: str) -> set[str]:
    return {finding.kind for finding in imported.findings if any(part in flag for flag in finding.flags)}


def test_there_are_enough_of_them():
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_pasted_text_becomes_what_it_says(case: Case, facts):
    imported = import_text(case.text, facts=facts)
    assert imported.dialect == case.dialect
    assert imported.preset.hardware == {"gpu": "here", "count": case.count}
    found = {key: value_at(imported, key) for key in case.values}
    assert found == case.values
    for part, kind in case.told.items():
        assert kind in kinds_of(imported, part), [f for f in imported.findings if part in " ".join(f.flags)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_flag_is_dropped_without_a_word(case: Case, facts):
    pasted = read_paste(case.text)
    told = {flag for finding in import_text(case.text, facts=facts).findings for flag in finding.flags}
    assert {s.written for s in (*pasted.settings, *pasted.launcher, *pasted.environment)} <= told


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_no_flag_of_a_file_is_dropped_either(path, facts):
    pasted = read_paste(path.read_text("utf-8"))
    told = {flag for finding in import_text(path.read_text("utf-8"), facts=facts).findings for flag in finding.flags}
    assert {s.written for s in (*pasted.settings, *pasted.environment)} <= told
    assert len(pasted.settings) >= 5
    assert pasted.stray == ()


def read(name: str, facts) -> Imported:
    return import_text((FOLDER / f"{name}.txt").read_text("utf-8"), facts=facts)


def test_two_gpus_with_ulysses(facts):
    imported = read("two_gpu_ulysses", facts)
    assert imported.preset.hardware == {"gpu": "here", "count": 2}
    values = imported.preset.values
    assert (values["ulysses"], values["max_length"], values["lora"]["rank"]) == (2, 16384, 16)
    assert values["gradient_accumulation_steps"] == 8
    assert imported.runs_dir == "out_16k"
    (finding,) = [f for f in imported.findings if "--ulysses_num_chunks 2" in f.flags]
    assert finding.flags == ("--use_ulysses true", "--ulysses_num_chunks 2")
    assert finding.keys == (("ulysses", 2),)


def test_one_gpu_with_everything(facts):
    imported = read("one_gpu_everything", facts)
    values = imported.preset.values
    assert values["fake_parallel"] == 2
    assert values["fused_loss"] is True
    assert values["packing"] is True
    assert values["lora"] == {"rank": 64, "alpha": 128, "targets": "all-linear"}
    assert values["data"]["train"] == ["ms::AI-ModelScope/alpaca-gpt4-data-zh#300", "local/contracts.jsonl#300"]
    assert values["data"]["system"] == "Answer briefly, and cite the clause."
    assert not {"galore", "ring", "sequence_parallel", "flash_attention"} & set(values)
    galore = next(f for f in imported.findings if "--galore_rank 64" in f.flags)
    assert galore.kind == "impossible"
    assert "161 million" in galore.why  # rank 64 on every linear of the 7B
    kernel = next(f for f in imported.findings if "--flash_attn_version 3" in f.flags)
    assert kernel.kind == "impossible"
    assert "CPU" in kernel.why
    assert dict(kernel.keys) == {"flash_attention": "auto"}
    ring = next(f for f in imported.findings if "--use_ring_attn true" in f.flags)
    assert ring.kind == "impossible"
    assert "fake_parallel" in ring.fix


def test_the_fake_parallel_switch_is_answered_by_the_planner_when_the_method_excludes_it(facts):
    """Today head groups need plain weights; once they take 4-bit ones, the same command keeps both."""
    imported = read("one_gpu_fake_parallel", facts)
    finding = next(f for f in imported.findings if "--ulysses_use_fake_parallel true" in f.flags)
    assert imported.preset.values["qlora"]["rank"] == 8
    assert imported.preset.values["fused_loss"] is True
    keeps_both = imported.preset.values.get("fake_parallel") == 2
    assert finding.kind == ("translated" if keeps_both else "impossible")


def test_the_newest_names(facts):
    values = read("modern_v4", facts).preset.values
    assert (values["sequence_parallel"], values["max_length"], values["packing"]) == (4, 32768, True)
    assert "lora" not in values
    assert values["data"]["train"] == ["hf::org/long-docs"]


def test_inference_becomes_a_line_to_run(facts):
    imported = read("infer_vllm", facts)
    assert imported.preset is None
    assert imported.command[:4] == ("longfit", "infer", "MODEL", "PROMPT")
    assert imported.command[4:6] == ("--adapter", "out_8k/checkpoint-100")
    vllm = next(f for f in imported.findings if "--infer_backend vllm" in f.flags)
    assert "vllm serve" in vllm.fix
    assert "--max-lora-rank 64" in vllm.fix


def test_dotted_values_are_nested_as_a_preset_has_them():
    assert nested({"lora": True, "lora.rank": 8, "packing": True}) == {"lora": {"rank": 8}, "packing": True}
