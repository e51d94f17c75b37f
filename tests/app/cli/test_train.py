"""longfit train from preset to finished run: the real planner, data preparation and trainer, on a tiny model."""

from __future__ import annotations

import json

import pytest
import yaml

from app.cli.main import main
from app.services import launch as launching
from app.services.runs import list_runs
from planner.errors import DoesNotFit
from tests.core.train.tiny_llama import save_tiny_llama

PRESET = {
    "name": "tiny",
    "hardware": {"gpu": "cpu", "count": 1},
    "data": {"eval_fraction": 0.2},
    "dtype": "float32",
    "max_length": 64,
    "max_steps": 4,
    "learning_rate": 0.01,
    "lora": {"rank": 4},
    "packing": True,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def preset(tmp_path, model, monkeypatch):
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LONGFIT_RUNS", str(tmp_path / "runs"))
    rows = [
        {"messages": [{"role": "user", "content": f"name {i}"}, {"role": "assistant", "content": f"long {i}"}]}
        for i in range(20)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {**PRESET, "model": str(model), "data": {**PRESET["data"], "train": [str(data)]}}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.mark.slow
def test_from_a_preset_to_a_finished_run(preset, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    mixed = [f"data.train=[{rows}#200%, {rows}]", f"data.weights={{{rows}#200%: 1, {rows}: 1}}", "packing.length=32"]
    overrides = [word for text in ("learning_rate=0.02", *mixed) for word in ("--set", text)]
    assert main(["train", preset, *overrides, "--json"]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert (summary["status"], summary["step"], summary["total_steps"]) == ("done", 4, 4)
    assert summary["last_eval_loss"] < summary["first_eval_loss"]
    assert summary["peaks"][0]["measured_bytes"] > 0
    assert summary["peaks"][0]["planned_bytes"] > 0
    (run,) = list_runs().runs
    assert run.config.learning_rate == 0.02
    assert "rows.jsonl#200% gives 20 of 40 rows" in err
    assert yaml.safe_load(run.paths.preset.read_text())["learning_rate"] == 0.02
    assert run.paths.path.parent == tmp_path / "runs"
    assert f"run {run.id}" in err
    assert "FITS" in err


def test_what_does_not_fit_is_refused_with_numbers_before_anything_is_written(preset, tmp_path, capsys):
    planned = launching.plan_for_launch(preset)
    small = launching.replace(
        planned.plan, verdict="over",
        gpus=tuple(launching.replace(gpu, usable_bytes=1000) for gpu in planned.plan.gpus),
    )  # fmt: skip
    with pytest.raises(DoesNotFit) as caught:
        launching.refuse_what_does_not_fit(small)
    assert "of 1000 B" in str(caught.value)
    assert "no GPU that can be used; `longfit plan" in caught.value.fix
    assert caught.value.exit_code == 3
    assert not (tmp_path / "runs").exists()


def test_a_change_that_would_fit_can_be_pasted_into_a_shell(preset):
    plan = launching.plan_for_launch(preset).plan
    fitting = launching.replace(
        launching.plan_for_launch("qwen2.5-7b-8k-1x24g").plan.alternatives[0],
        verdict="fits", changes=(("gradient_checkpointing", {"save_attention": True}), ("lora", False)),
    )  # fmt: skip
    with pytest.raises(DoesNotFit) as caught:
        launching.refuse_what_does_not_fit(launching.replace(plan, verdict="over", alternatives=(fitting,)))
    assert "--set 'gradient_checkpointing={save_attention: true}' --set lora=false" in caught.value.fix


@pytest.mark.parametrize(
    ("change", "fact"),
    [("max_lenght=64", "max_length"), ("max_length=100000", "512"), ("sequence_parallel=2", "fake_parallel"),
     ("data.train=[nowhere.jsonl]", "nowhere.jsonl")],
)  # fmt: skip
def test_bad_input_is_exit_code_2_and_leaves_no_run(preset, tmp_path, capsys, change, fact):
    assert main(["train", preset, "--set", change]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert fact in err
    assert not (tmp_path / "runs").exists()
