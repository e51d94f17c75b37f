"""What the Runs screen shows of each run, and the way from a run back to a preset."""

import json

import pytest

from app.services.presets import load_preset
from app.services.run_facts import RunFactsReader
from app.services.run_preset import change_lines, first_fix, promote
from app.services.runs import snapshot
from planner.errors import ConfigError
from tests.app.plans import GIB
from tests.app.runs import append, make_run

PRESET = """\
name: mine
hardware: {gpu: cpu, count: 2}
model: Qwen/Qwen2.5-7B-Instruct
max_length: 8192
lora: {rank: 64}
data: {train: [a.jsonl]}
"""


@pytest.fixture
def run_of(tmp_path):
    def make(status="done", **more):
        path = make_run(tmp_path, status=status, **more)
        (path / "preset.yaml").write_text(PRESET)
        return path

    return make


def with_changes(path, *changes):
    content = json.loads((path / "postmortem.json").read_text())
    content["out_of_memory"] = {"changes": [{"changes": c, "used_bytes": GIB, "why": "because"} for c in changes]}
    (path / "postmortem.json").write_text(json.dumps(content))


def test_facts_of_a_run_and_only_new_rows_are_read(run_of):
    path = run_of(status="failed")
    (path / "env.json").write_text('{"host": "gpu01"}')
    reader = RunFactsReader()
    facts = reader.read(snapshot(path))
    assert facts.last_loss == pytest.approx(1.2186, abs=1e-3)
    assert (facts.peak_bytes, facts.planned_peak_bytes) == (round(10.1 * GIB), 10 * GIB)
    assert (facts.host, facts.obstacle) == ("gpu01", "")
    append(path / "memory.jsonl", {"rank": 0, "step": 41, "instant": "backward", "allocated_bytes": 12 * GIB})
    assert reader.read(snapshot(path)).peak_bytes == 12 * GIB
    assert reader._peaks[path.resolve()].tail.offset == (path / "memory.jsonl").stat().st_size


def test_a_run_that_is_done_says_why_it_cannot_be_resumed(run_of):
    facts = RunFactsReader().read(snapshot(run_of()))
    assert "all 100 steps were taken" in facts.obstacle


def test_the_first_proposed_change_is_the_fix_and_is_shown_as_a_diff(run_of):
    path = run_of(status="failed")
    with_changes(path, {"max_length": 4096, "fused_loss": True}, {"max_length": 2048})
    fix = first_fix(snapshot(path).paths)
    assert fix.changes == {"max_length": 4096, "fused_loss": True}
    assert (fix.preset.name, fix.on_cpu, fix.why) == ("mine", False, "because")
    assert change_lines(fix.preset, fix.changes) == ("- max_length: 8192", "+ max_length: 4096", "+ fused_loss: true")


@pytest.mark.parametrize(("kind", "words"), [("oom", "found none that keeps the method"), ("data", "want of memory")])
def test_without_a_change_that_fits_the_reason_is_said(run_of, kind, words):
    path = run_of(status="failed")
    content = json.loads((path / "postmortem.json").read_text())
    (path / "postmortem.json").write_text(json.dumps({**content, "kind": kind, "out_of_memory": {"changes": []}}))
    with pytest.raises(ConfigError, match=words):
        first_fix(snapshot(path).paths)


def test_a_good_run_becomes_a_preset_with_what_was_measured(run_of, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = run_of()
    (path / "env.json").write_text(
        json.dumps({"device": "cuda", "gpus": [{"name": "NVIDIA A10"}], "packages": {"torch": "2.13"},
                    "source": {"commit": "abc"}})
    )  # fmt: skip
    saved = promote(snapshot(path), "good")
    preset = load_preset("good")
    assert saved == tmp_path / "config" / "longfit" / "presets" / "good.yaml"
    assert preset.values["max_length"] == 8192
    (facts,) = preset.measured
    assert facts["gpu"] == "NVIDIA A10"
    assert (facts["run"], facts["steps"], facts["torch"], facts["commit"]) == (path.name, 40, "2.13", "abc")
    assert facts["allocated_bytes"] == round(10.1 * GIB)
    assert facts["loss"] == pytest.approx(1.2186, abs=1e-3)
    with pytest.raises(ConfigError, match="exists already"):
        promote(snapshot(path), "good")
