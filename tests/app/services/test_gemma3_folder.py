"""Gemma 3 with pictures from a folder: rehearsed, trained by the worker beyond its window, and answering afterwards."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from app.services.rehearse import rehearse_preset
from planner.types import Preset
from tests.app.services.folder_cases import LONGFIT, folder_preset, train_from_folder

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


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preset:
    return folder_preset(tmp_path, monkeypatch, "gemma3", WHOLE, words=40)


def test_a_rehearsal_passes_and_prints_planned_beside_measured(preset: Preset) -> None:
    rehearsal = rehearse_preset(preset, steps=3)
    assert rehearsal.failure is None
    assert list(rehearsal.measured) == ["load", "forward", "backward", "step"]
    assert any("gradients reached both matrices of 28 adapters" in claim for claim in rehearsal.evidence)
    assert abs(rehearsal.used_error) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adapters", pytest.param("every weight", marks=pytest.mark.soak)])
def test_longfit_train_ends_with_a_checkpoint_that_answers(preset: Preset, tmp_path: Path, method: str) -> None:
    shape = {**WHOLE, "text_config": {**TEXT, "vocab_size": 512}, "image_token_index": 511}
    values = {key: value for key, value in preset.values.items() if key != "lora" or method == "adapters"}
    runs, checkpoint = train_from_folder(tmp_path, preset, shape, values)
    weights = "adapter_model.safetensors" if method == "adapters" else "model.safetensors"
    assert list(checkpoint.rglob(weights))
    run = next(runs.iterdir()).name
    argv = [*LONGFIT, "infer", run, "row 3", "--runs-dir", str(runs), "--max-new-tokens", "40"]
    answered = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert answered.returncode == 0, answered.stderr
    assert "new ones" in answered.stderr
