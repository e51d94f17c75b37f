"""The service and the verb: stores for a run in a process of its own, exit codes, report on stdout, talk on stderr."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import main
from app.services import prepare_data as service
from app.services.prepare_data import prepare_sources
from core.data.report import DataRefused
from core.data.store import TokenStore
from planner.errors import ConfigError, LaunchError
from planner.types import DataConfig
from tests.core.data.conftest import train_backend
from tests.core.data.templates import CHATML, DATA


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    PreTrainedTokenizerFast(
        tokenizer_object=train_backend(), eos_token="<|im_end|>", chat_template=CHATML
    ).save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_stores_progress_and_cache(model: str) -> None:
    seen: list[tuple[object, ...]] = []
    data = DataConfig(train=(str(DATA / "k02_ga_tail_10.jsonl"),), eval_fraction=0.2)
    prepared = prepare_sources(data, model=model, max_length=64, on_progress=lambda *told: seen.append(told))
    assert prepared.eval_store is not None
    assert (len(TokenStore(prepared.train_store)), len(TokenStore(prepared.eval_store))) == (8, 2)
    assert seen == [(10, str(DATA / "k02_ga_tail_10.jsonl"), 1.0)]
    assert prepare_sources(data, model=model, max_length=64).report["cached"]


def test_errors_come_back_as_the_errors_they_were(model: str) -> None:
    with pytest.raises(DataRefused) as refused:
        prepare_sources(DataConfig(train=(str(DATA / "k04_malformed.jsonl"),)), model=model, max_length=64)
    assert refused.value.report["rows"]["bad"] == 5
    assert refused.value.exit_code == 2
    with pytest.raises(ConfigError, match="There is no"):
        prepare_sources(DataConfig(train=("/absent.jsonl",)), model=model, max_length=64)


def test_a_process_that_dies_is_a_launch_error_with_its_last_words(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys; sys.stderr.write('out of memory\\n'); sys.exit(9)"
    monkeypatch.setattr(service, "python_argv", lambda *_: (sys.executable, "-c", script))
    with pytest.raises(LaunchError, match=r"exit code 9\. out of memory"):
        prepare_sources(DataConfig(train=("a",)), model=model, max_length=64)


def test_the_verb_prints_a_table_or_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["data", str(DATA / "k02_ga_tail_10.jsonl"), "--model", model, "--max-length", "64", "--rows", "1"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith("train: 10 messages\n")
    assert "  > value 0<|im_end|>" in text
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == 1
    assert report["train"]["rows"]["kept"] == 10
    assert len(report["train"]["preview"]) == 1


def test_a_refused_set_prints_its_report_and_leaves_with_2(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["data", str(DATA / "k04_malformed.jsonl"), "--model", model]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert "bad          5" in out
    assert "5 of 9 rows" in err
    assert main([*arguments, "--json"]) == 2
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["train"]["problems"]["count"] == 5
    assert answer["error"]["fix"].startswith("Mend them")
    assert main([*arguments, "--on-bad-row", "skip"]) == 0


def test_columns_are_named_on_the_command_line(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"frage": "q?", "antwort": "a."}) + "\n")
    assert main(["data", str(path), "--model", model, "--column", "query=frage", "--column", "response=antwort"]) == 0
    assert "  > a.<|im_end|>" in capsys.readouterr().out
    assert main(["data", str(path), "--model", model, "--column", "query"]) == 2
    assert "names no pair" in capsys.readouterr().err


def test_a_file_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", str(DATA / "k02_ga_tail_10.jsonl")]) == 2
    assert "Whose tokenizer should read" in capsys.readouterr().err


def test_a_preset_brings_model_length_and_policy(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 600,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    Path(model, "config.json").write_text(json.dumps(shape))
    preset = tmp_path / "mine.yaml"
    preset.write_text(
        f"name: mine\nmodel: {model}\nmax_length: 64\nhardware: {{gpu: cpu, count: 1}}\ndtype: float32\n"
        f"packing: true\ndata: {{train: [{DATA}/k01_overlength_mix.jsonl], over_length: split}}\n"
    )
    assert main(["data", str(preset), "--rows", "0"]) == 0
    text = capsys.readouterr().out
    assert "split into pieces" in text
    assert main(["data", str(preset), "--max-length", "128", "--over-length", "drop", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["max_length"], report["train"]["rows"]["dropped"] > 0) == (128, True)


def test_several_sets_with_weights_and_other_keys(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, count in (("a", 10), ("b", 30)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{name} {n}"}}\n' for n in range(count)))
    a, b = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    weights = ["--weight", f"{a}=0.5", "--weight", f"{b}=0.5"]
    arguments = ["data", a, b, "--model", model, *weights, "--set", "data.eval_fraction=0.1"]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(item["rows"], item["left_out"]) for item in report["train"]["sets"]] == [(10, 0), (10, 20)]
    assert report["train"]["held_out_rows"] == 2
    for wrong, words in (
        (["--weight", f"{a}=half"], "'half' is not a number"),
        (["--set", "lora.rank=4"], "unknown key 'lora'"),
        (["--max-length", "0"], "max_length is 0"),
    ):
        assert main(["data", a, "--model", model, *wrong]) == 2
        assert words in capsys.readouterr().err


def test_the_stand_in_of_a_shipped_preset_is_called_one(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "qwen2.5-7b-8k-1x24g"]) == 2
    said = capsys.readouterr().err
    assert "train.jsonl stands for your own data" in said
    assert "--set data.train=[my.jsonl]" in said
    (tmp_path / "train.jsonl").write_text("")
    assert main(["data", "qwen2.5-7b-8k-1x24g"]) == 2
    assert "stands for your own data" not in capsys.readouterr().err
