"""The trainer on one CUDA GPU: 16-bit weights, exact resume under `deterministic`, NVML, the worker process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from core.train import worker
from tests.core.train.runs import LORA, curve, make_run, setting, train, weights
from tests.core.train.tiny_llama import save_tiny_llama

pytestmark = [pytest.mark.gpu(1), pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

DROPOUT = setting("lora", **dict(LORA.knobs) | {"dropout": 0.3})
MEMORY = (setting("gradient_checkpointing"), setting("fused_loss", chunk_tokens=16), setting("packing"))
SIXTEEN_BIT = {"dtype": "bfloat16", "autocast": True}


@pytest.fixture(scope="module")
def tiny_model_dir(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"), hidden_size=256)


@pytest.fixture(scope="module")
def gpu():
    return torch.device("cuda", 0)


@pytest.mark.parametrize("master_weights", ["none", "fp32", "stochastic"])
def test_updates_within_the_backward_are_those_after_it(tiny_model_dir, tmp_path, gpu, deterministic, master_weights):
    runs = [
        make_run(
            tmp_path, tiny_model_dir, *MEMORY, name=update, update=update, max_steps=4, dtype="bfloat16",
            deterministic=True, max_grad_norm=0.0, gradient_accumulation_steps=1, master_weights=master_weights,
            optim="adamw_torch_fused",
        )
        for update in ("step", "layer")
    ]  # fmt: skip
    (_, step, by_step), (_, layer, by_layer) = (train(directory, device=gpu) for directory in runs)
    assert [row["loss"] for row in layer.train_rows] == [row["loss"] for row in step.train_rows]
    expected = weights(by_step)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(by_layer).items())


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_a_deterministic_run_resumes_bit_for_bit(tiny_model_dir, tmp_path, gpu, deterministic, optim):
    keys = {
        **SIXTEEN_BIT,
        "max_steps": 8,
        "deterministic": True,
        "optim": optim,
        "eval_lengths": (30, 9),
        "eval_steps": 4,
    }
    whole = make_run(tmp_path, tiny_model_dir, DROPOUT, *MEMORY, name="whole", **keys)
    _, uninterrupted, one_go = train(whole, device=gpu)
    parted = make_run(tmp_path, tiny_model_dir, DROPOUT, *MEMORY, name="parted", **keys)
    _, first, _ = train(parted, stop_after=3, device=gpu)
    _, second, resumed = train(parted, device=gpu)
    assert second.of("resumed") == [{"step": 3, "exact": True, "reason": ""}]
    assert curve(first, second) == curve(uninterrupted)
    expected = weights(one_go)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(resumed).items())


def test_without_deterministic_a_resume_says_that_it_is_not_exact(tiny_model_dir, tmp_path, gpu):
    directory = make_run(tmp_path, tiny_model_dir, **SIXTEEN_BIT)
    train(directory, stop_after=3, device=gpu)
    _, second, _ = train(directory, device=gpu)
    (event,) = second.of("resumed")
    assert event["exact"] is False
    assert "deterministic: true" in event["reason"]


def test_the_first_loss_on_the_gpu_is_that_of_the_cpu(tiny_model_dir, tmp_path, gpu):
    _, on_cpu, _ = train(make_run(tmp_path, tiny_model_dir, LORA, *MEMORY, name="cpu", max_steps=1))
    _, on_gpu, _ = train(
        make_run(tmp_path, tiny_model_dir, LORA, *MEMORY, name="gpu", max_steps=1, **SIXTEEN_BIT), device=gpu
    )
    assert on_gpu.train_rows[0]["loss"] == pytest.approx(on_cpu.train_rows[0]["loss"], rel=2e-2)
    assert on_gpu.train_rows[0]["grad_norm"] == pytest.approx(on_cpu.train_rows[0]["grad_norm"], rel=0.1)


def test_float16_trains_with_a_loss_scale_and_the_loss_falls(tiny_model_dir, tmp_path, gpu):
    directory = make_run(tmp_path, tiny_model_dir, dtype="float16", autocast=True, max_steps=30, lengths=(40,) * 4)
    _, channel, ours = train(directory, device=gpu)
    assert ours.progress.loss_scale is not None
    rows = channel.train_rows
    assert len(channel.of("skipped")) == sum(row["grad_norm"] is None for row in rows) < 15
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_readings_keep_their_order_and_a_tensor_shows_in_all_three(tiny_model_dir, tmp_path, gpu):
    directory = make_run(tmp_path, tiny_model_dir, eval_lengths=(30,), **SIXTEEN_BIT)
    _, channel, ours = train(directory, device=gpu)
    for row in channel.memory_rows:
        assert 0 < row["allocated_bytes"] <= row["reserved_bytes"] < row["used_bytes"] <= row["peak_bytes"]
        assert 0 < row["baseline_bytes"] < row["used_bytes"]
    ours.meter.rows(6)
    torch.cuda.empty_cache()  # else the block takes what is reserved already
    probe = ours.meter.probe
    probe.lap()  # the highest of the run
    before = probe.lap()
    with ours.meter.during("forward"):
        block = torch.empty(2**30, dtype=torch.uint8, device=gpu)
    (row,) = ours.meter.rows(99)
    assert row["allocated_bytes"] >= 2**30
    assert row["used_bytes"] - before.used_bytes >= 2**30 - 2**24
    del block


def run_worker(directory):
    command = [sys.executable, "-P", "-m", "core.train.worker", str(directory.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(worker.__file__).parents[2]), *sys.path])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_the_worker_process_trains_on_the_gpu(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir, max_steps=2, **SIXTEEN_BIT)
    done = run_worker(directory)
    assert done.returncode == 0, done.stderr
    assert "done after step 2 of 2" in done.stdout
    state = json.loads((directory.checkpoints / "step-2" / "trainer_state.json").read_text())
    assert state["origin"]["device"] == torch.cuda.get_device_name(0)


def test_the_worker_process_exits_with_four_when_the_memory_of_the_gpu_ends(tiny_model_dir, tmp_path, gpu):
    directory = make_run(
        tmp_path, tiny_model_dir, LORA, max_steps=1, max_length=400_000, lengths=(400_000,), **SIXTEEN_BIT
    )
    free, _ = torch.cuda.mem_get_info(gpu)
    occupied = torch.empty(free - 2 * 2**30, dtype=torch.uint8, device=gpu)  # leaves 2 GiB, context included
    failed = run_worker(directory)
    del occupied
    torch.cuda.empty_cache()
    assert failed.returncode == 4, failed.stderr
    assert "OutOfMemoryError" in failed.stderr
