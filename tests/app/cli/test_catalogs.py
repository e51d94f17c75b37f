"""`longfit gpus`, `longfit models`, `longfit web`: data on stdout, talk on stderr, JSON for machines."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import gpus, models
from planner.catalog.gpus import GPUS
from planner.catalog.models import MODELS

ROOT = Path(gpus.__file__).resolve().parents[2]


def test_gpus_json_holds_what_is_here_and_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpus.run(argparse.Namespace(json=True)) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == 1
    assert [entry["name"] for entry in answer["catalog"]] == list(GPUS)
    assert answer["catalog"][0]["usable_bytes"] == next(iter(GPUS.values())).usable_bytes
    assert set(answer) >= {"problem", "driver_version", "gpus"}


def test_gpus_text_names_every_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpus.run(argparse.Namespace(json=False)) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in GPUS)
    assert max(len(line) for line in out.splitlines()) <= 110


def test_models_show_parameters_and_native_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.run(argparse.Namespace(json=False)) == 0
    captured = capsys.readouterr()
    line = next(line for line in captured.out.splitlines() if line.startswith("Qwen/Qwen2.5-7B-Instruct "))
    assert "7.62 B" in line
    assert "32,768" in line
    assert "28/4" in line
    assert "config.json" in captured.err


def test_models_json_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.run(argparse.Namespace(json=True)) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert set(rows) == set(MODELS)
    assert rows["Qwen/Qwen2.5-7B-Instruct"]["num_parameters"] == 7_615_616_512
    experts = rows["Qwen/Qwen3-30B-A3B"]
    assert (experts["num_parameters"], experts["num_active_parameters"]) == (30_532_122_624, 3_353_032_704)
    pictures = rows["Qwen/Qwen2.5-VL-7B-Instruct"]
    assert (rows["Qwen/Qwen2.5-7B-Instruct"]["trainable"], pictures["trainable"]) == (True, False)


def test_models_that_are_planned_only_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.run(argparse.Namespace(json=False)) == 0
    marked = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("planned only")}
    assert "Qwen/Qwen2.5-VL-7B-Instruct" in marked
    assert not {"Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "mistralai/Mixtral-8x7B-v0.1"} & marked


def test_web_without_gradio_is_one_clear_error() -> None:
    """A find_spec that does not see gradio stands for an environment without the extra."""
    code = (
        "import sys\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'gradio' else real(name, package)\n"
        "from app.cli.main import main; sys.exit(main(['web']))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 5
    assert result.stdout == ""
    assert "error: The browser page needs gradio, which is not installed." in result.stderr
    assert 'pip install "longfit[web]"' in result.stderr
    assert "Traceback" not in result.stderr
