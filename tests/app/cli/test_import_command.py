"""longfit import, preset show --as, and longfit sft up to its plan."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from app.cli.main import main
from app.cli.sft import environment_settings, with_files
from app.services.importing.command import read_arguments
from app.services.presets import load_preset

FOLDER = Path(__file__).parents[2] / "data" / "swift_commands"
COMMAND = "swift sft --model Qwen/Qwen3-8B --dataset rows.jsonl --max_length 1024 --lora_rank 4 --use_dora true"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in ("NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES", "USE_HF"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("arguments", [[COMMAND], COMMAND.split(), ["command.sh"], ["-"], []], ids=str)
def test_text_words_file_and_standard_input_are_the_same(arguments, home, capsys, monkeypatch):
    (home / "command.sh").write_text(COMMAND)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(COMMAND.encode())))
    assert main(["import", *arguments]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["lora"]["rank"] == 4
    assert "--use_dora true" in err
    assert "Not as written" in err


def test_save_writes_a_preset_that_plans(home, capsys):
    assert main(["import", "--save", "mine", COMMAND]) == 0
    out, err = capsys.readouterr()
    assert Path(out.strip()) == home / "config" / "longfit" / "presets" / "mine.yaml"
    assert "longfit plan mine" in err
    assert load_preset("mine").values["max_length"] == 1024
    assert main(["plan", "mine", "--gpu", "A10"]) == 0
    assert main(["import", "--save", "mine", COMMAND]) == 2
    assert main(["import", "--save", "mine", "--overwrite", COMMAND]) == 0


def test_strict_stops_with_the_reason_and_saves_nothing(home, capsys):
    assert main(["import", "--strict", "--save", "mine", COMMAND]) == 2
    _, err = capsys.readouterr()
    assert "error: --use_dora true" in err
    assert not (home / "config").exists()
    assert main(["import", "--strict", COMMAND.replace("--use_dora true", "")]) == 0


def test_json_holds_preset_and_findings(capsys):
    assert main(["import", "--json", COMMAND]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["schema"], answer["dialect"], answer["verb"]) == (1, "swift", "sft")
    assert answer["preset"]["model"] == "Qwen/Qwen3-8B"
    assert {finding["kind"] for finding in answer["findings"]} >= {"translated", "impossible", "implied"}
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["nothing here"], "Nothing was imported"), (["gone.yaml"], "There is no file gone.yaml"),
        (["swift sft"], "swift sft"),
    ],
)  # fmt: skip
def test_what_is_no_command_is_bad_input(arguments, fact, capsys):
    assert main(["import", *arguments]) == 2
    assert fact in capsys.readouterr().err


def test_bytes_that_are_no_text_are_bad_input(home, capsys):
    (home / "x.txt").write_bytes(b"\xff\xfe\x00")
    assert main(["import", "x.txt"]) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_inference_prints_the_line_to_run(capsys):
    assert main(["import", str(FOLDER / "infer_vllm.txt")]) == 0
    assert capsys.readouterr().out.startswith("longfit infer MODEL PROMPT --adapter out_8k/checkpoint-100")


@pytest.mark.parametrize(
    ("name", "gpus", "codes"), [("one_gpu_everything", "A10", (0, 3)), ("two_gpu_ulysses", "2xA10", (0, 3))]
)
def test_the_articles_commands_plan_on_24_gb_cards_with_the_truth_told(name, gpus, codes, capsys):
    assert main(["import", "--save", name, str(FOLDER / f"{name}.txt")]) == 0
    capsys.readouterr()
    code = main(["plan", name, "--gpu", gpus, "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert code in codes
    assert (code == 3) == (plan["verdict"] == "over")
    peak = plan["gpus"][0]["peak"]["used_bytes"]
    assert peak > 15.2e9  # the 16-bit weights alone: no 5.8 or 12.8 GB with weights that stay
    if plan["verdict"] == "over":
        assert any(found["verdict"] in ("fits", "unverified") for found in plan["alternatives"])


def test_a_preset_in_the_words_of_another_tool(capsys):
    assert main(["preset", "show", "qwen2.5-7b-16k-2x24g", "--as", "swift"]) == 0
    out, err = capsys.readouterr()
    assert "swift sft \\\n" in out
    assert "# longfit: fused_loss=true" in out
    assert "ms-swift cannot say it" in err
    assert main(["import", out]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["sequence_parallel"] == 2


def test_importing_loads_neither_torch_nor_any_other_heavy_package():
    code = (
        "import sys\n"
        "from app.services.importing.imported import import_text\n"
        f"assert import_text({COMMAND!r}).preset\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER.parents[2], capture_output=True, text=True, check=True
    )
    assert not {"torch", "transformers", "peft", "numpy", "pydantic", "textual", "gradio"} & set(done.stdout.split())


def test_sft_honours_the_variables_that_swift_reads():
    settings = environment_settings({"NPROC_PER_NODE": "2", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0,1"})
    assert [setting.written for setting in settings] == ["NPROC_PER_NODE=2", "CUDA_VISIBLE_DEVICES=0,1"]


def test_sft_takes_a_file_in_front_and_flags_over_it(home):
    (home / "run.yaml").write_text("model: Qwen/Qwen3-8B\nmax_length: 512\nENV: {NPROC_PER_NODE: 4}\n")
    pasted = with_files(read_arguments(["run.yaml", "--max_length", "1024"]))
    assert [(s.name, s.value) for s in pasted.settings] == [
        ("model", "Qwen/Qwen3-8B"), ("max_length", 512), ("max_length", "1024"),
    ]  # fmt: skip
    assert [s.written for s in pasted.environment] == ["NPROC_PER_NODE=4"]


SFT = ["sft", "--model", "Qwen/Qwen3-8B", "--dataset", "rows.jsonl", "--max_length", "1024"]


@pytest.mark.parametrize(
    ("arguments", "code", "fact"),
    [
        (["sft"], 2, "No flag was given"),
        ([*SFT, "--use_dora", "true", "--strict"], 2, "--use_dora true"),
        ([*SFT, "--model", "Qwen/Qwen3-7B"], 2, "Qwen/Qwen3-8B"),
        ([*SFT, "--max_length", "90000", "--gpu", "cpu"], 2, "rope_scaling"),
        (["sft", "gone.yaml"], 2, "There is no file gone.yaml"),
    ],
)
def test_sft_stops_before_anything_loads(arguments, code, fact, capsys):
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert fact in err
    assert out == ""


def test_sft_stops_when_the_plan_is_over(capsys):
    """All of a 70B model in float32, with gradients and moments, is 1.1 TB."""
    arguments = ["sft", "--model", "meta-llama/Llama-3.1-70B", "--dataset", "rows.jsonl", "--max_length", "1024"]
    assert main([*arguments, "--tuner_type", "full", "--torch_dtype", "float32", "--gpu", "cpu"]) == 3
    err = capsys.readouterr().err
    assert "--max_length 1024 -> max_length: 1024" in err
    assert "OVER" in err
    assert "does not fit" in err


def test_a_swift_flag_named_strict_is_swifts_own(capsys):
    assert main([*SFT, "--model", "Qwen/Qwen3-7B", "--strict", "true"]) == 2
    assert "--strict true -> data.on_bad_row: stop" in capsys.readouterr().err


def test_other_verbs_still_refuse_flags_they_do_not_know(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["plan", "x", "--max_length", "8"])
    assert caught.value.code == 2
    assert "does not know --max_length" in capsys.readouterr().err
