"""Weights in pinned host memory on a real GPU: the copies of a side stream change no bit, and the device holds less."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.core.train.runs import LORA, make_run, setting, train, weights
from tests.core.train.tiny_llama import save_tiny_llama

pytestmark = [pytest.mark.gpu(1), pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

MEMORY = (setting("gradient_checkpointing"), setting("fused_loss", chunk_tokens=16), setting("packing"))
QLORA = setting("qlora", **dict(LORA.knobs))
MIB = 1024**2


@pytest.fixture(scope="module")
def wide_model_dir(tmp_path_factory):
    """12 layers of 6 MiB in bf16: copies that take longer than the little that a short row computes."""
    return save_tiny_llama(tmp_path_factory.mktemp("wide-llama"), hidden_size=1024, num_layers=12)


@pytest.mark.parametrize("method", [LORA, QLORA], ids=["lora", "qlora"])
@pytest.mark.parametrize("embeddings", ["resident", "streamed"])
@pytest.mark.parametrize("engine", ["module", "layer"])
def test_streamed_runs_are_bit_for_bit_the_resident_ones(
    wide_model_dir, tmp_path, deterministic, engine, embeddings, method
):
    keys = {"engine": engine, "dtype": "bfloat16", "autocast": True, "deterministic": True, "max_steps": 4,
            "eval_lengths": (30, 9), "eval_steps": 2}  # fmt: skip
    streaming = setting("weight_streaming", embeddings=embeddings)
    gpu, held, runs = torch.device("cuda", 0), [], []
    for name, added in (("resident", ()), ("streamed", (streaming,))):
        directory = make_run(tmp_path, wide_model_dir, method, *MEMORY, *added, name=name, **keys)
        gc.collect()  # the run before: its parts refer to each other
        before = torch.cuda.memory_allocated()
        _, channel, trainer = train(directory, device=gpu)
        held.append(torch.cuda.memory_allocated() - before)
        runs.append(([row["loss"] for row in channel.train_rows], weights(trainer)))
        trainer.setup.restore()
        del trainer
    (want_losses, want), (losses, got) = runs
    assert losses == want_losses
    assert all(torch.equal(weight, want[name]) for name, weight in got.items())
    layer = 1.5 * MIB if method is QLORA else 6 * MIB
    assert held[1] < held[0] - 9 * layer
