"""A mixture of experts from a folder: rehearsed with random weights, and its saved weights trained by the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.services.rehearse import rehearse_preset
from app.views.rehearsal_view import rehearsal_text
from planner.errors import ConfigError
from planner.types import Preset
from tests.app.services.folder_cases import folder_preset, train_from_folder

TINY = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 4096,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preset:
    return folder_preset(tmp_path, monkeypatch, "experts", TINY, words=5)


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
    _, checkpoint = train_from_folder(tmp_path, preset, {**TINY, "vocab_size": 512}, preset.values)
    assert list(checkpoint.rglob("adapter_model.safetensors"))
