"""A rehearsal on the CPU: the real processes, a tiny model of true shape, planned against measured, no memory left."""

from __future__ import annotations

import json

import pytest

from app.services.calibration import calibration_file, read_calibrations
from app.services.hardware import parse_bytes
from app.services.rehearse import rehearse_preset
from app.views.rehearsal_view import _line, rehearsal_dict, rehearsal_text
from planner.errors import ConfigError
from planner.types import Preset

TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))

    def preset(**values):
        keys = {
            "model": str(folder), "max_length": 512, "dtype": "float32", "data": {"train": ["nothing.jsonl"]},
            "lora": {"rank": 8}, "gradient_checkpointing": True, "fused_loss": True, **values,
        }  # fmt: skip
        return Preset(name="tiny", description="", values=keys, hardware={"gpu": "cpu"})

    return preset


def test_a_preset_is_rehearsed_without_weights_and_without_data(tiny):
    rehearsal = rehearse_preset(tiny(gradient_accumulation_steps=2, packing=True), steps=3)
    assert rehearsal.failure is None
    assert list(rehearsal.measured) == ["load", "forward", "backward", "step"]
    assert all(reading.used_bytes > reading.allocated_bytes >= 0 for reading in rehearsal.measured.values())
    assert rehearsal.tokens_per_second > 0
    assert any("gradients reached both matrices of 28 adapters" in claim for claim in rehearsal.evidence)
    assert any("4 of 4 decoder layers recompute" in claim for claim in rehearsal.evidence)
    assert any("each attending to itself alone" in claim for claim in rehearsal.evidence)
    [record] = read_calibrations("CPU")
    assert calibration_file("CPU") == rehearsal.calibration
    assert record["measured_used_bytes"] == rehearsal.measured_used
    assert record["planned_used_bytes"] == rehearsal.planned.plan.worst_gpu.used_bytes
    assert "It runs." in rehearsal_text(rehearsal)
    assert json.loads(json.dumps(rehearsal_dict(rehearsal)))["measured"]["used_bytes"] == rehearsal.measured_used


@pytest.mark.slow
def test_a_limit_that_is_too_low_ends_in_out_of_memory_with_its_instant(tiny):
    """Stock loss of 4,096 tokens and 65,536 words: gigabytes of logits, against a process of a fraction."""
    preset = tiny(fused_loss=False, max_length=4096, per_device_train_batch_size=4)
    rehearsal = rehearse_preset(preset, steps=2, limit_bytes=1_000_000_000)
    assert rehearsal.is_out_of_memory
    assert rehearsal.failure["instant"] in ("forward", "backward")
    assert "Out of memory in step 1" in rehearsal.failure["message"]
    assert rehearsal.calibration is None
    assert read_calibrations("CPU") == ()
    assert rehearsal.planned.plan.verdict == "over"
    assert "It did not run" in rehearsal_text(rehearsal)


@pytest.mark.slow
def test_qlora_and_two_ranks_are_rehearsed_too(tiny):
    pytest.importorskip("bitsandbytes")
    preset = tiny(lora=False, qlora={"rank": 8}, ulysses=2)
    preset = Preset(name="two", description="", values=preset.values, hardware={"gpu": "cpu", "count": 2})
    rehearsal = rehearse_preset(preset, steps=2)
    assert rehearsal.failure is None
    assert any("28 decoder linears are NF4" in claim for claim in rehearsal.evidence)
    assert any("2 ranks exchanged tokens for heads" in claim for claim in rehearsal.evidence)


@pytest.mark.soak
@pytest.mark.parametrize("method", [{}, {"lora": False}], ids=["lora", "full"])
def test_shards_over_two_ranks_are_rehearsed_too(tiny, method):
    """As the worker of a run does it: weights on the host first, then a share of them on each rank."""
    preset = Preset(
        name="two", description="", values=tiny(fsdp=True, **method).values, hardware={"gpu": "cpu", "count": 2}
    )
    rehearsal = rehearse_preset(preset, steps=2)
    assert rehearsal.failure is None
    assert any("this rank, one of 2, holds" in claim for claim in rehearsal.evidence)


def test_one_step_proves_nothing():
    with pytest.raises(ConfigError, match="rehearsal of 1 steps"):
        rehearse_preset("demo-smollm2", steps=1)


@pytest.mark.parametrize(
    ("text", "size"), [("24GB", 24 * 10**9), ("22.5GiB", 22.5 * 2**30), ("512 mib", 512 * 2**20), ("1TB", 10**12)]
)
def test_amounts_of_memory(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["24", "GB", "-1GB", "24 G", "1e3GB"])
def test_an_amount_without_unit_or_number_is_refused(text):
    with pytest.raises(ConfigError, match="no amount of memory"):
        parse_bytes(text)


def test_a_row_of_the_table_tells_the_deviation():
    assert _line("forward", 1000, 1100).endswith("+10.0%")
    assert _line("forward", 0, 1100).rstrip().endswith("KiB")
