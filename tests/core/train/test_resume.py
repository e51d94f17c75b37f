"""A resumed run continues at the next sample with identical generators: bit for bit the uninterrupted curve."""

import os
from dataclasses import replace

import pytest
import torch

from core.run.config_file import read_config
from core.train.checkpoint import newest_valid
from tests.core.train.runs import LORA, RecordingChannel, build, change, crash, curve, make_run, setting, train, weights

DROPOUT = setting("lora", **dict(LORA.knobs) | {"dropout": 0.3})
CASES = {
    "plain": ((LORA,), {}),
    "dropout": ((DROPOUT,), {}),
    "packing": ((DROPOUT, setting("packing")), {"gradient_accumulation_steps": 2}),
    "accumulation across epochs": ((DROPOUT,), {"gradient_accumulation_steps": 3, "lr_scheduler_type": "linear"}),
    "rows logged across the stop": ((LORA,), {"logging_steps": 4, "lr_scheduler_type": "wsd", "warmup_steps": 3}),
    "checkpointing and chunked loss": (
        (DROPOUT, setting("gradient_checkpointing"), setting("fused_loss", chunk_tokens=8)), {},
    ),
    "fused AdamW": ((LORA,), {"optim": "adamw_torch_fused", "weight_decay": 0.1}),
    "full model": ((setting("gradient_checkpointing"),), {"learning_rate": 1e-3, "weight_decay": 0.1}),
    "evaluation and best": ((DROPOUT,), {"eval_steps": 2, "save_steps": 3, "keep_best": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_stopped_at_five_and_resumed_the_curve_equals_twelve_steps_in_one_go(tiny_model_dir, tmp_path, case):
    optimizations, keys = CASES[case]
    common = {"max_steps": 12, "eval_lengths": (20, 9) if "eval_steps" in keys else ()}
    whole = make_run(tmp_path, tiny_model_dir, *optimizations, name="whole", **common, **keys)
    _, uninterrupted, one_go = train(whole)

    parted = make_run(tmp_path, tiny_model_dir, *optimizations, name="parted", **common, **keys)
    # With rows on every fourth step the stop is asked for while the row of step 4 is the last one.
    outcome, first, _ = train(parted, stop_after=2 if "logging_steps" in keys else 5)
    assert outcome == "stopped"
    torch.manual_seed(999)
    outcome, second, resumed = train(parted)
    assert outcome == "done"
    (event,) = second.of("resumed")
    assert event == {"step": 5, "exact": True, "reason": ""}
    assert curve(first, second) == curve(uninterrupted)
    expected = weights(one_go)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(resumed).items())
    for file in (whole.checkpoints / "step-12").glob("*.safetensors"):
        assert (parted.checkpoints / "step-12" / file.name).read_bytes() == file.read_bytes(), file.name


def test_after_a_kill_steps_since_the_last_checkpoint_are_repeated_exactly(tiny_model_dir, tmp_path):
    keys = {"max_steps": 10, "save_steps": 3}
    _, uninterrupted, _ = train(make_run(tmp_path, tiny_model_dir, DROPOUT, name="whole", **keys))
    directory = make_run(tmp_path, tiny_model_dir, DROPOUT, name="killed", **keys)
    before = crash(directory, after=8)
    _, after, _ = train(directory)
    assert after.of("resumed") == [{"step": 6, "exact": True, "reason": ""}]
    assert curve(before)[:6] + curve(after) == curve(uninterrupted)
    assert curve(before) == curve(uninterrupted)[:8]


def test_twenty_samples_over_two_epochs_are_each_seen_twice_when_stopped_at_seven(tiny_model_dir, tmp_path):
    directory = make_run(
        tmp_path, tiny_model_dir, lengths=(9,) * 20, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=2
    )
    seen = []
    for stop_after in (7, None):
        built = build(directory, RecordingChannel(stop_after))
        row = built.batches.row

        def spy(epoch, index, row=row):
            seen.append((epoch, *row(epoch, index).sample_ids))
            return row(epoch, index)

        built.batches.row = spy
        built.run()
    assert len(seen) == 40
    assert sorted(seen) == [(epoch, sample) for epoch in (0, 1) for sample in range(20)]


def test_a_torn_newest_checkpoint_is_told_and_the_one_before_it_continues(tiny_model_dir, tmp_path):
    keys = {"max_steps": 10, "save_steps": 3}
    _, uninterrupted, _ = train(make_run(tmp_path, tiny_model_dir, name="whole", **keys))
    directory = make_run(tmp_path, tiny_model_dir, name="torn", **keys)
    crash(directory, after=8)
    file = directory.checkpoints / "step-6" / "optimizer.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    _, after, _ = train(directory)
    (warning,) = after.of("warning")
    assert "step-6 was passed over: optimizer.safetensors has" in warning["message"]
    assert after.of("resumed")[0]["step"] == 3
    assert curve(after) == curve(uninterrupted)[3:]
    assert newest_valid(directory.checkpoints).skipped == ()


def test_resuming_a_finished_run_trains_nothing_more(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir, eval_lengths=(9,))
    train(directory)
    outcome, again, _ = train(directory)
    assert outcome == "done"
    assert again.rows == []
    assert again.of("checkpoint") == []


def test_a_changed_config_resumes_and_says_that_it_is_not_exact(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir)
    train(directory, stop_after=3)
    before = read_config(directory.path)
    change(directory, learning_rate=5e-3, max_steps=8)
    after = replace(before, learning_rate=5e-3, max_steps=8)
    _, channel, _ = train(directory)
    (event,) = channel.of("resumed")
    assert event["exact"] is False
    assert event["reason"] == f"the resolved config changed ({before.hash()} -> {after.hash()})"
    assert [row["step"] for row in channel.train_rows] == [4, 5, 6, 7, 8]
