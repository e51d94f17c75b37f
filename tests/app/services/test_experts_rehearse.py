"""A mixture of experts from a folder: rehearsed with random weights, and its saved weights trained by the worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.services.rehearse import rehearse_preset
from app.views.rehearsal_view import rehearsal_text
from planner.errors import ConfigError
from planner.types import Preset

TINY = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 4096,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
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
    folder = tmp_path / "experts"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"row {i} " + "and so on " * (5 + i)}) + "\n" for i in range(12)))
    return Preset(
        name="experts", description="", hardware={"gpu": "cpu"}, values={
            "model": str(folder), "max_length": 512, "dtype": "float32", "data": {"train": [str(rows)]},
            "lora": {"rank": 8}, "gradient_checkpointing": {"save_attention": True}, "fused_loss": True,
            "packing": True, "max_steps": 2,
        },
    )  # fmt: skip


def test_a_rehearsal_passes_and_prints_planned_beside_measured(preset: Preset) -> None:
    rehearsal = rehearse_preset(preset, steps=3)
    assert rehearsal.failure is None
    assert list(rehearsal.measured) == ["load", "forward", "backward", "step"]
    assert any("gradients reached both matrices of 12 adapters" in claim for claim in rehearsal.evidence)
    assert abs(rehearsal.used_error) < 0.15
    text = rehearsal_text(rehearsal)
    assert "planned" in text
    assert "It runs." in text


def test_full_fine_tuning_is_not_rehearsed(preset: Preset) -> None:
    with pytest.raises(ConfigError, match="8 experts in 3 of 3 layers: full fine-tuning of it is planned only"):
        rehearse_preset(preset, {"lora": False})


@pytest.mark.slow
def test_longfit_train_ends_with_a_checkpoint(preset: Preset, tmp_path: Path) -> None:
    model, runs = preset.values["model"], tmp_path / "runs"
    shape = json.dumps({**TINY, "vocab_size": 512})
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", SAVE, model, shape], check=True, capture_output=True, env=environment)
    file = tmp_path / "experts.yaml"
    file.write_text(json.dumps({"name": "experts", "hardware": {"gpu": "cpu"}, **preset.values}))  # JSON is YAML
    argv = [sys.executable, "-m", "app.cli.main", "train", str(file), "--yes", "--runs-dir", str(runs)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "done: step 2 of 2" in done.stdout + done.stderr
    [checkpoint] = runs.glob("*/checkpoints/step-2")
    assert list(checkpoint.rglob("adapter_model.safetensors"))
