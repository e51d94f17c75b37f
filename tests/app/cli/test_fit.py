"""`longfit fit`: length, batch, how many GPUs, which GPU; presets and models alike."""

from __future__ import annotations

import json

import pytest

import app.services.sizing
from app.cli.main import main
from planner.catalog.gpus import GPUS


@pytest.fixture
def few_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.services.sizing, "GPUS", {name: GPUS[name] for name in ("A10", "RTX-4090", "T4")})


def answer_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    code = main(["fit", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_preset_is_asked_for_its_longest_row(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = answer_of(capsys, "qwen2.5-7b-8k-1x24g")
    assert code == 0
    assert (answer["schema"], answer["key"]) == (1, "max_length")
    assert answer["value"] > 8192
    code, less = answer_of(capsys, "qwen2.5-7b-8k-1x24g", "--memory-limit", "22GB")
    assert 0 < less["value"] < answer["value"]


def test_a_length_that_the_model_ends_is_not_said_to_be_the_hardwares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "demo-smollm2", "--gpu", "H200", "--set", "sequence_parallel=1"]) == 0
    assert "8192 fits on 1 x H200, and is all the model has positions for" in capsys.readouterr().out
    assert main(["fit", "qwen2.5-7b-8k-1x24g"]) == 0
    assert "is the largest that fits on 1 x RTX-4090" in capsys.readouterr().out


def test_a_model_is_asked_for_hardware(capsys: pytest.CaptureFixture[str], few_gpus: None) -> None:
    arguments = ("Qwen/Qwen2.5-7B-Instruct", "--length", "16384", "--method", "lora")
    code, answer = answer_of(capsys, *arguments)
    assert code == 0
    assert (answer["method"], answer["max_length"]) == ("lora", 16384)
    assert {found["gpu"] for found in answer["answers"]} == {"A10", "RTX-4090"}
    assert [found["gpu"] for found in answer["rejected"]] == ["T4"]
    assert main(["fit", *arguments]) == 0
    out = capsys.readouterr().out
    assert "1 x RTX-4090" in out
    assert "no bfloat16" in out


def test_cheapest_names_what_has_no_price(capsys: pytest.CaptureFixture[str], few_gpus: None) -> None:
    assert main(["fit", "qwen2.5-7b-instruct", "--length", "8192", "--goal", "cheapest", "--solve", "hardware"]) == 0
    out = capsys.readouterr().out
    assert "left out because it has no price: 1 x A10" in out
    assert "$/Mtoken" in out


def test_how_many_of_one_type(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = answer_of(
        capsys, "meta-llama/Llama-3.1-8B-Instruct", "--length", "8192", "--method", "full", "--solve", "gpus", "--gpu",
        "RTX-4090",
    )  # fmt: skip
    assert code == 0
    assert answer["answers"][0]["num_gpus"] == 4
    assert answer["answers"][0]["optimizations"]["fsdp"] == {}
    assert [rejected["num_gpus"] for rejected in answer["rejected"]] == [1, 2, 3]
    assert all(rejected["missing_bytes"] > 0 for rejected in answer["rejected"])


def test_where_nothing_suffices_a_smaller_method_is_named(capsys: pytest.CaptureFixture[str], few_gpus: None) -> None:
    assert main(["fit", "Qwen/Qwen2.5-72B-Instruct", "--length", "8192"]) == 3
    out = capsys.readouterr().out
    assert "None of them suffices." in out
    assert "--method qlora" in out
    assert "GiB are missing" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("Qwen/Qwen2.5-7B-Instruct", "--solve", "gpus"), "not of which"),
        (("Qwen/Qwen2.5-7B-Instruct", "--length", "100000"), "factor: 3.5"),
        (("Qwen/Qwen2.5-7B-Instruct", "--length", "-5"), "max_length is -5"),
        (("no-such-thing",), "no preset named"),
        (("Qwen/Qwen3-7B",), "Did you mean Qwen/Qwen3-"),
        (("Qwen/Qwen2.5-7B-Instruct", "--gpu", "A11"), "Did you mean A10"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    capsys: pytest.CaptureFixture[str], few_gpus: None, arguments: tuple[str, ...], words: str
) -> None:
    assert main(["fit", *arguments]) == 2
    assert words in capsys.readouterr().err
