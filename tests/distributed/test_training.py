"""Training over two gloo processes against one: the same numbers, whatever the split, and the same bits on resume."""

import pytest
import torch

from core.train.checkpoint import newest_valid
from planner.types import ParallelDegrees
from tests.core.train.runs import LORA, change, curve, make_run, setting, train, weights
from tests.core.train.tiny_llama import save_tiny_llama
from tests.distributed.train_programs import fail_to_save, poison_rank, reduce_small_buckets, train_rank

POSITIONS = "eval_loss_by_position"
DROPOUT = setting("lora", **dict(LORA.knobs) | {"dropout": 0.3})
SPLITS = {
    "data 2": (ParallelDegrees(data=2), (), {}),
    "data 2, accumulated": (ParallelDegrees(data=2), (), {"gradient_accumulation_steps": 2}),
    "ring 2, packed": (ParallelDegrees(ring=2), (setting("ring", degree=2), setting("packing")), {}),
    "ulysses 2": (ParallelDegrees(ulysses=2), (setting("ulysses", degree=2),), {}),
}


@pytest.fixture(scope="module")
def tiny_model_dir(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.mark.parametrize("split", SPLITS)
def test_two_processes_train_the_curve_and_weights_of_one(run_ranks, tiny_model_dir, tmp_path, split):
    """Nine samples: the last window of an epoch leaves a data rank without targets."""
    degrees, optimizations, keys = SPLITS[split]
    common = {"lengths": (12, 20, 7, 30, 16, 9, 25, 11, 14), "eval_lengths": (21, 5, 40), "eval_steps": 3,
              "max_steps": -1, "num_train_epochs": 2, "learning_rate": 1e-3}  # fmt: skip
    accumulation = keys.get("gradient_accumulation_steps", 1)
    alone = [optimization for optimization in optimizations if optimization.name == "packing"]
    one = make_run(
        tmp_path, tiny_model_dir, LORA, *alone, name="one", gradient_accumulation_steps=accumulation * degrees.data,
        **common,
    )  # fmt: skip
    _, expected, single = train(one)
    two = make_run(tmp_path, tiny_model_dir, LORA, *optimizations, name="two", parallel=degrees, **common, **keys)
    first, second = run_ranks(train_rank, 2, str(two.path))

    assert second["curve"] == []
    assert second["events"] == []
    assert (first["memory_ranks"], second["memory_ranks"]) == ({0}, {1})
    for ours, theirs in zip(first["curve"], curve(expected), strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours.keys() - {"epoch", POSITIONS}:  # epoch counts micro-batches: two ranks have five, one has nine
            assert ours[key] == pytest.approx(theirs[key], rel=2e-4), (key, ours["step"])
        for our_bucket, their_bucket in zip(ours.get(POSITIONS, ()), theirs.get(POSITIONS, ()), strict=True):
            assert our_bucket == pytest.approx(their_bucket, rel=2e-4), ours["step"]
    for name, weight in weights(single).items():
        assert torch.equal(first["weights"][name], second["weights"][name]), name
        assert torch.allclose(first["weights"][name], weight, atol=2e-4), name
    assert newest_valid(two.checkpoints).step == first["step"]


@pytest.mark.parametrize("axis", ["data", "ring", "ulysses"])
def test_two_processes_update_layer_by_layer_as_after_the_backward(run_ranks, tiny_model_dir, tmp_path, axis):
    """Nine samples, so that a data rank has none in the last step of an epoch, and no gradient of any layer."""
    degrees = ParallelDegrees(**{axis: 2})
    optimizations = (setting("gradient_checkpointing"), *([setting(axis, degree=2)] if axis != "data" else []))
    of_ranks = []
    for update in ("step", "layer"):
        directory = make_run(
            tmp_path, tiny_model_dir, *optimizations, name=update, update=update, parallel=degrees, max_grad_norm=0.0,
            lengths=(12, 20, 7, 30, 16, 9, 25, 11, 14), max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=1,
        )  # fmt: skip
        of_ranks.append(run_ranks(train_rank, 2, str(directory.path)))
    (step, _), (first, second) = of_ranks
    for ours, theirs in zip(first["curve"], step["curve"], strict=True):
        assert ours["loss"] == theirs["loss"]
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
    for name, weight in step["weights"].items():
        assert torch.equal(first["weights"][name], weight), name
        assert torch.equal(second["weights"][name], weight), name


@pytest.mark.parametrize("degrees", [ParallelDegrees(data=2), ParallelDegrees(ring=2)], ids=["data", "ring"])
def test_two_processes_resume_bit_for_bit_with_dropout(run_ranks, tiny_model_dir, tmp_path, degrees):
    optimizations = (DROPOUT, setting("packing"), *([setting("ring", degree=2)] if degrees.ring == 2 else []))
    keys = {"parallel": degrees, "max_steps": 8, "gradient_accumulation_steps": 2}
    whole = make_run(tmp_path, tiny_model_dir, *optimizations, name="whole", **keys)
    uninterrupted = run_ranks(train_rank, 2, str(whole.path))
    parted = make_run(tmp_path, tiny_model_dir, *optimizations, name="parted", **keys)
    stopped = run_ranks(train_rank, 2, str(parted.path), 3)
    assert [rank["outcome"] for rank in stopped] == ["stopped", "stopped"]
    assert [rank["step"] for rank in stopped] == [3, 3]
    resumed = run_ranks(train_rank, 2, str(parted.path))
    assert ("resumed", {"step": 3, "exact": True, "reason": ""}) in resumed[0]["events"]
    assert stopped[0]["curve"] + resumed[0]["curve"] == uninterrupted[0]["curve"]
    for name, weight in uninterrupted[0]["weights"].items():
        assert torch.equal(resumed[0]["weights"][name], weight), name
    for file in (whole.checkpoints / "step-8").glob("*.safetensors"):
        assert (parted.checkpoints / "step-8" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_checkpoint_of_two_processes_continues_on_one_and_says_why_it_is_not_exact(
    run_ranks,
    tiny_model_dir,
    tmp_path,
):
    directory = make_run(tmp_path, tiny_model_dir, parallel=ParallelDegrees(data=2), name="two")
    run_ranks(train_rank, 2, str(directory.path), 3)
    change(directory, parallel=ParallelDegrees())
    _, channel, _ = train(directory)
    (event,) = channel.of("resumed")
    assert (event["step"], event["exact"]) == (3, False)
    assert "2 processes saved it, 1 continue" in event["reason"]


@pytest.mark.parametrize("guilty", [0, 1])
def test_a_loss_that_is_not_finite_on_one_rank_stops_all_and_names_it(
    run_ranks,
    tiny_model_dir,
    tmp_path,
    guilty,
):
    directory = make_run(tmp_path, tiny_model_dir, parallel=ParallelDegrees(data=2))
    for message, step in run_ranks(poison_rank, 2, str(directory.path), guilty):
        assert f"The loss of step 2 is not finite on rank {guilty}." in message
        assert step == 1


def test_a_disk_that_refuses_rank_zero_ends_every_rank_with_its_reason(
    run_ranks,
    tiny_model_dir,
    tmp_path,
):
    directory = make_run(tmp_path, tiny_model_dir, parallel=ParallelDegrees(data=2))
    directory.checkpoints.rmdir()
    directory.checkpoints.write_text("a file where the folder should be")
    for answer in run_ranks(fail_to_save, 2, str(directory.path)):
        assert answer.startswith("EnvironmentProblem The checkpoint of step 6 could not be written")


@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20])
def test_gradients_are_summed_in_wide_buckets_and_a_missing_one_is_zero(run_ranks, bucket_bytes):
    first, second = run_ranks(reduce_small_buckets, 2, bucket_bytes)
    for index, (a, b) in enumerate(zip(first["own"], second["own"], strict=True)):
        expected = (a.to(torch.float64) + b.to(torch.float64)).to(a.dtype)
        tolerance = {torch.float64: 0.0, torch.float32: 1e-6, torch.bfloat16: 0.0}[a.dtype]
        for rank in (first, second):
            assert torch.allclose(rank["summed"][index], expected, atol=tolerance, rtol=0), index
    for rank in (first, second):
        norm = sum((gradient.double() ** 2).sum() for gradient in rank["own"]).sqrt().item()
        assert rank["norm"] == pytest.approx(norm, rel=1e-6)
