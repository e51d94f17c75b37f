"""Gemma 3 with pictures from a folder: rehearsed, trained by the worker beyond its window, and answering afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.services.rehearse import rehearse_preset
from planner.types import Preset

TEXT = {
    "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 4096, "sliding_window": 32,
    "sliding_window_pattern": 2, "max_position_embeddings": 4096, "query_pre_attn_scalar": 16,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}  # fmt: skip
WHOLE = {
    "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": TEXT,
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 56, "patch_size": 14, "vision_use_head": False,
    },
    "mm_tokens_per_image": 4, "image_token_index": 4095,
}  # fmt: skip
SAVE = """
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


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preset:
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "whole"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(WHOLE))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"row {i} " + "and so on " * (40 + i)}) + "\n" for i in range(12)))
    return Preset(
        name="gemma3", description="", hardware={"gpu": "cpu"}, values={
            "model": str(folder), "max_length": 512, "dtype": "float32", "data": {"train": [str(rows)]},
            "lora": {"rank": 8}, "gradient_checkpointing": {"save_attention": True}, "fused_loss": True,
            "packing": True, "max_steps": 2,
        },
    )  # fmt: skip


def test_a_rehearsal_passes_and_prints_planned_beside_measured(preset: Preset) -> None:
    rehearsal = rehearse_preset(preset, steps=3)
    assert rehearsal.failure is None
    assert list(rehearsal.measured) == ["load", "forward", "backward", "step"]
    assert any("gradients reached both matrices of 28 adapters" in claim for claim in rehearsal.evidence)
    assert abs(rehearsal.used_error) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adapters", pytest.param("every weight", marks=pytest.mark.soak)])
def test_longfit_train_ends_with_a_checkpoint_that_answers(preset: Preset, tmp_path: Path, method: str) -> None:
    runs = tmp_path / "runs"
    shape = json.dumps({**WHOLE, "text_config": {**TEXT, "vocab_size": 512}, "image_token_index": 511})
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    saved = [sys.executable, "-c", SAVE, preset.values["model"], shape]
    subprocess.run(saved, check=True, capture_output=True, env=environment)
    values = {key: value for key, value in preset.values.items() if key != "lora" or method == "adapters"}
    file = tmp_path / "gemma3.yaml"
    file.write_text(json.dumps({"name": "gemma3", "hardware": {"gpu": "cpu"}, **values}))  # JSON is YAML
    longfit = [sys.executable, "-m", "app.cli.main"]
    argv = [*longfit, "train", str(file), "--yes", "--runs-dir", str(runs)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "done: step 2 of 2" in done.stdout + done.stderr
    [checkpoint] = runs.glob("*/checkpoints/step-2")
    weights = "adapter_model.safetensors" if method == "adapters" else "model.safetensors"
    assert list(checkpoint.rglob(weights))
    run = next(runs.iterdir()).name
    argv = [*longfit, "infer", run, "row 3", "--runs-dir", str(runs), "--max-new-tokens", "40"]
    answered = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert answered.returncode == 0, answered.stderr
    assert "new ones" in answered.stderr
