"""When a trainer saves and ends: on its steps, its best, a stop, a number that is not finite, a full disk."""

import math

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from core.data.store import TokenStore
from core.train import saver, trainer
from core.train.checkpoint import newest_valid
from core.train.trainer import NonFinite
from planner.errors import EnvironmentProblem
from tests.core.train.runs import RecordingChannel, build, make_run, plain_eval_loss, setting, train, weights


def checkpoint_steps(directory):
    return sorted(int(path.name.removeprefix("step-")) for path in directory.checkpoints.iterdir())


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        ({}, [7]),
        ({"save_steps": 2}, [6, 7]),
        ({"save_steps": 2, "save_total_limit": 1}, [7]),
        ({"save_steps": 3, "save_total_limit": 0}, [3, 6, 7]),
        ({"save_steps": 7}, [7]),
    ],
)
def test_checkpoints_are_saved_on_their_steps_and_the_limit_leaves_the_newest(tiny_model_dir, tmp_path, keys, left):
    directory = make_run(tmp_path, tiny_model_dir, max_steps=7, **keys)
    _, channel, _ = train(directory)
    assert checkpoint_steps(directory) == left
    assert len(channel.of("checkpoint")) == len({event["step"] for event in channel.of("checkpoint")})


def test_best_checkpoint_is_saved_at_its_evaluation_and_survives_the_limit(tiny_model_dir, tmp_path):
    # A rate that first helps and then destroys: the best evaluation is not the last one.
    directory = make_run(
        tmp_path, tiny_model_dir, setting("gradient_checkpointing"), max_steps=8, learning_rate=0.05,
        lr_scheduler_type="constant", eval_steps=1, lengths=(40,) * 4, eval_lengths=(40, 40), save_steps=3,
        save_total_limit=2, keep_best=True,
    )  # fmt: skip
    _, channel, _ = train(directory)
    after = {event["step"]: event["loss"] for event in channel.of("evaluation") if event["step"] > 0}
    best = min(after, key=after.__getitem__)
    assert best < 8, "the scenario needs a best step before the last"
    assert checkpoint_steps(directory) == [best, 8]
    assert after[best] == pytest.approx(
        plain_eval_loss(
            AutoModelForCausalLM.from_pretrained(directory.checkpoints / f"step-{best}"),
            TokenStore(directory.path / "eval.store"),
        )[0],
        rel=1e-5,
    )


def test_stop_ends_at_the_next_step_boundary_with_a_checkpoint_of_it(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir, eval_lengths=(9,))
    outcome, channel, _ = train(directory, stop_after=4)
    assert outcome == "stopped"
    assert [row["step"] for row in channel.train_rows] == [1, 2, 3, 4]
    assert newest_valid(directory.checkpoints).step == 4
    assert channel.of("running") == [{"total_steps": 6, "world": 1}]
    assert [event["step"] for event in channel.of("evaluation")] == [0]


def test_stop_before_the_first_step_saves_nothing(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir)
    outcome, channel, _ = train(directory, stop_after=0)
    assert (outcome, channel.rows, checkpoint_steps(directory)) == ("stopped", [], [])


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_number_that_is_not_finite_stops_before_the_update_and_names_step_and_rank(
    tiny_model_dir, tmp_path, monkeypatch, where
):
    directory = make_run(tmp_path, tiny_model_dir, save_steps=2)
    channel = RecordingChannel()
    built = build(directory, channel)
    forward = trainer.forward_loss

    def poisoned(setup, shard):
        loss = forward(setup, shard)
        if built.progress.step == 2:
            if where == "loss":
                return loss * math.nan
            loss.register_hook(lambda gradient: gradient * math.inf)
        return loss

    monkeypatch.setattr(trainer, "forward_loss", poisoned)
    with pytest.raises(NonFinite, match=f"The {where} of step 3 is not finite on rank 0") as failure:
        built.run()
    assert failure.value.failure_kind == "nonfinite"
    assert [row["step"] for row in channel.train_rows] == [1, 2]
    saved = load_file(newest_valid(directory.checkpoints).path / "adapter_model.safetensors")
    assert newest_valid(directory.checkpoints).step == 2
    assert all(tensor.isfinite().all() for tensor in saved.values())
    assert all(weight.isfinite().all() for weight in weights(built).values())


def test_a_periodic_save_that_fails_is_told_and_training_goes_on(tiny_model_dir, tmp_path, monkeypatch):
    directory = make_run(tmp_path, tiny_model_dir, save_steps=2, save_total_limit=0)
    write = saver.write_checkpoint

    def full_at_step_four(checkpoints, step, fill):
        if step == 4:
            raise EnvironmentProblem("The checkpoint of step 4 could not be written.", why="No space left on device.")
        return write(checkpoints, step, fill)

    monkeypatch.setattr(saver, "write_checkpoint", full_at_step_four)
    outcome, channel, _ = train(directory)
    assert outcome == "done"
    assert checkpoint_steps(directory) == [2, 6]
    (warning,) = channel.of("warning")
    assert "step 4" in warning["message"]
    assert "No space left" in warning["message"]


def test_a_last_save_that_fails_ends_the_run_with_the_reason(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir)
    directory.checkpoints.rmdir()
    directory.checkpoints.write_text("a file where the folder should be")
    with pytest.raises(EnvironmentProblem, match="The checkpoint of step 6 could not be written"):
        train(directory)
