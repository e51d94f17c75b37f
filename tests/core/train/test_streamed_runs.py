"""Whole runs over weights that wait on the host: the losses, the held-out losses and the weights of the run without."""

from __future__ import annotations

import pytest
import torch

from tests.core.train.runs import LORA, curve, make_run, setting, train, weights
from tests.core.train.tiny_llama import save_tiny_llama

LEAN = (LORA, setting("gradient_checkpointing"), setting("fused_loss", chunk_tokens=16), setting("packing"))
STREAMED = setting("weight_streaming", embeddings="streamed")
KEYS = {"eval_lengths": (30, 9), "eval_steps": 2, "gradient_accumulation_steps": 2}


@pytest.fixture(scope="module")
def tiny_model_dir(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"), num_layers=4)


@pytest.mark.parametrize("engine", ["module", "layer"])
def test_a_streamed_run_stops_resumes_and_ends_as_the_resident_one(tiny_model_dir, tmp_path, engine):
    whole = make_run(tmp_path, tiny_model_dir, *LEAN, name="resident", engine=engine, **KEYS)
    _, want, resident = train(whole)
    parted = make_run(tmp_path, tiny_model_dir, *LEAN, STREAMED, name="streamed", engine=engine, **KEYS)
    outcome, first, _ = train(parted, stop_after=3)
    assert outcome == "stopped"
    _, second, streamed = train(parted)
    assert curve(first, second) == curve(want)
    assert any("eval_loss" in row for row in want.rows)
    expected = weights(resident)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(streamed).items())
    (claim,) = [data["claim"] for data in second.of("evidence") if data["optimization"] == "weight_streaming"]
    assert claim.startswith("4 layers, embeddings and head wait in host memory")
