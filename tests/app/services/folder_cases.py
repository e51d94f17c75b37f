"""A model of a family as a folder: its config.json as a preset, random weights beside it, and training from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.types import Preset

LONGFIT = (sys.executable, "-m", "app.cli.main")
_SAVE = """
import json, sys, torch
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM
from tests.core.train.tiny_llama import save_tiny_llama
folder = Path(sys.argv[1])
save_tiny_llama(folder)  # for its tokenizer
config = AutoConfig.for_model(**json.loads(sys.argv[2]))
torch.manual_seed(0)
AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
"""


def folder_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, config: Mapping[str, Any], *, words: int
) -> Preset:
    """Of a folder that has ``config`` and no weights; the shortest row says its words ``words`` times."""
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"row {i} " + "and so on " * (words + i)}) + "\n" for i in range(12)))
    return Preset(
        name=name, description="", hardware={"gpu": "cpu"}, values={
            "model": str(folder), "max_length": 512, "dtype": "float32", "data": {"train": [str(rows)]},
            "lora": {"rank": 8}, "gradient_checkpointing": {"save_attention": True}, "fused_loss": True,
            "packing": True, "max_steps": 2,
        },
    )  # fmt: skip


def train_from_folder(
    tmp_path: Path, preset: Preset, config: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Path, Path]:
    """(runs, checkpoint of step 2) of `longfit train` with ``values``, from random weights of ``config``."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    saved = [sys.executable, "-c", _SAVE, preset.values["model"], json.dumps(config)]
    subprocess.run(saved, check=True, capture_output=True, env=environment)
    runs, file = tmp_path / "runs", tmp_path / f"{preset.name}.yaml"
    file.write_text(json.dumps({"name": preset.name, "hardware": {"gpu": "cpu"}, **values}))  # JSON is YAML
    argv = [*LONGFIT, "train", str(file), "--yes", "--runs-dir", str(runs)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "done: step 2 of 2" in done.stdout + done.stderr
    [checkpoint] = runs.glob("*/checkpoints/step-2")
    return runs, checkpoint
