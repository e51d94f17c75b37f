"""Runs on shards: the curve of one process, checkpoints like any other's, the same bits on resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.train.checkpoint import newest_valid
from planner.types import ParallelDegrees
from tests.core.train.runs import LORA, change, curve, make_run, setting, train, weights
from tests.core.train.tiny_llama import save_tiny_llama
from tests.distributed.sharded_programs import train_on_shards

DATA_2 = ParallelDegrees(data=2)
FULL = (setting("gradient_checkpointing"), setting("fused_loss", chunk_tokens=16))
METHODS = {"full": FULL, "lora": (LORA, *FULL)}
KEYS: dict[str, Any] = {"learning_rate": 1e-3, "max_steps": 6, "optim": "adamw_torch"}


@pytest.fixture(scope="module")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


def tensors_of(checkpoint: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {file.name: load_file(file) for file in checkpoint.glob("*.safetensors") if file.name != "rng.safetensors"}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_on_shards_has_the_curve_and_the_checkpoint_of_one_process(
    run_ranks: Any, tiny_model_dir: Path, tmp_path: Path, method: str
) -> None:
    """Nine samples: the last window of an epoch leaves a data rank without targets."""
    common = {
        **KEYS, "lengths": (12, 20, 7, 30, 16, 9, 25, 11, 14), "eval_lengths": (21, 5, 40), "eval_steps": 3,
    }  # fmt: skip
    one = make_run(tmp_path, tiny_model_dir, *METHODS[method], name="one", gradient_accumulation_steps=4, **common)
    _, expected, single = train(one)
    two = make_run(
        tmp_path, tiny_model_dir, *METHODS[method], setting("fsdp"), name="two", gradient_accumulation_steps=2,
        parallel=DATA_2, **common,
    )  # fmt: skip
    first, _ = run_ranks(train_on_shards, 2, str(two.path))
    for ours, theirs in zip(first["curve"], curve(expected), strict=True):
        for key in {"loss", "eval_loss", "grad_norm", "num_targets"} & theirs.keys():
            assert ours[key] == pytest.approx(theirs[key], rel=2e-4), (key, ours["step"])
    assert any(data["optimization"] == "fsdp" for name, data in first["events"] if name == "evidence")
    found = newest_valid(two.checkpoints)
    assert found.step == 6
    ours, theirs = tensors_of(two.checkpoints / "step-6"), tensors_of(one.checkpoints / "step-6")
    assert ours.keys() == theirs.keys()
    for file, tensors in theirs.items():
        assert ours[file].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.allclose(ours[file][name], tensor, atol=2e-4), (file, name)
    # a run without shards goes on from it, as from any other's
    change(two, parallel=ParallelDegrees(), optimizations=METHODS[method], max_steps=7)
    _, channel, after = train(two)
    assert channel.of("resumed")[0]["step"] == 6
    assert weights(after).keys() == weights(single).keys()


@pytest.mark.parametrize(
    "case",
    ["lora", "rounding by chance", *(pytest.param(c, marks=pytest.mark.soak) for c in ("full", "float32 masters"))],
)
def test_a_run_on_shards_resumes_bit_for_bit(run_ranks: Any, tiny_model_dir: Path, tmp_path: Path, case: str) -> None:
    optimizations = (*METHODS["lora" if case == "lora" else "full"], setting("fsdp"))
    keys = {**KEYS, "parallel": DATA_2, "gradient_accumulation_steps": 2, "save_steps": 3}
    if case in ("float32 masters", "rounding by chance"):
        keys |= {"dtype": "bfloat16", "master_weights": "fp32" if case == "float32 masters" else "stochastic"}
    whole = make_run(tmp_path, tiny_model_dir, *optimizations, name="whole", **keys)
    uninterrupted = run_ranks(train_on_shards, 2, str(whole.path))
    parted = make_run(tmp_path, tiny_model_dir, *optimizations, name="parted", **keys)
    stopped = run_ranks(train_on_shards, 2, str(parted.path), 4)
    shutil.rmtree(parted.checkpoints / "step-4")  # as if it had been killed after step 4: that step is repeated
    resumed = run_ranks(train_on_shards, 2, str(parted.path))
    assert ("resumed", {"step": 3, "exact": True, "reason": ""}) in resumed[0]["events"]
    assert stopped[0]["curve"][:3] + resumed[0]["curve"] == uninterrupted[0]["curve"]
    for file in (whole.checkpoints / "step-6").glob("*.safetensors"):
        assert (parted.checkpoints / "step-6" / file.name).read_bytes() == file.read_bytes(), file.name
