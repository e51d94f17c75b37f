"""Every training key of RunConfig by its effect, on a tiny Llama in this process."""

import json
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from core.data.store import TokenStore
from core.train import evaluate, trainer
from core.train.schedule import learning_rate_factor
from tests.core.data.templates import DATA
from tests.core.train.runs import (
    LORA,
    RecordingChannel,
    build,
    curve,
    make_run,
    plain_eval_loss,
    setting,
    train,
    weights,
)

FULL = (setting("gradient_checkpointing"),)


def ids_seen(directory):
    """(sample ids of each micro-batch in order, what the run told)"""
    channel = RecordingChannel()
    built = build(directory, channel)
    seen, row = [], built.batches.row

    def spy(epoch, index):
        seen.append(row(epoch, index).sample_ids)
        return row(epoch, index)

    built.batches.row = spy
    built.run()
    return seen, channel


def test_ten_rows_accumulated_by_four_train_six_steps_in_two_epochs_each_divided_by_its_own_targets(
    tiny_model_dir, tmp_path
):
    directory = make_run(
        tmp_path, tiny_model_dir, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=4,
        lr_scheduler_type="linear",
    )  # fmt: skip
    seen, channel = ids_seen(directory)
    rows = channel.train_rows
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["epoch"] for row in rows] == [0.4, 0.8, 1.0, 1.4, 1.8, 2.0]
    ids = [sample for micro in seen for sample in micro]
    assert sorted(ids[:10]) == sorted(ids[10:]) == list(range(10))
    counts = TokenStore(directory.path / "train.store").target_counts
    windows = [ids[0:4], ids[4:8], ids[8:10], ids[10:14], ids[14:18], ids[18:20]]
    assert [row["num_targets"] for row in rows] == [int(sum(counts[window])) for window in windows]
    # The schedule reaches its end with the steps really taken.
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-2 * (1 - step / 6) for step in range(6)])


def test_accumulation_beyond_the_data_trains_once_an_epoch(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=16)
    seen, channel = ids_seen(directory)
    assert [row["epoch"] for row in channel.train_rows] == [1.0, 2.0]
    assert len(seen) == 20


def test_full_training_equals_a_plain_loop_over_the_transformers_model(tiny_model_dir, tmp_path):
    """Loss, gradient norm and weights after three steps of two micro-batches of unequal length, without our code."""
    directory = make_run(
        tmp_path, tiny_model_dir, *FULL, max_steps=3, gradient_accumulation_steps=2, max_grad_norm=0.5,
        weight_decay=0.1, learning_rate=1e-3, lr_scheduler_type="constant",
    )  # fmt: skip
    seen, _ = ids_seen(make_run(tmp_path, tiny_model_dir, *FULL, max_steps=6, name="order"))
    _, channel, ours = train(directory)

    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}], 1e-3, weight_decay=0.1
    )
    store = TokenStore(directory.path / "train.store")
    for step, row in enumerate(channel.train_rows):
        losses, num_targets = [], 0
        for (sample,) in seen[2 * step : 2 * step + 2]:
            tokens, targets = (torch.tensor(array) for array in store.sample(sample))
            logits = model(input_ids=tokens[None].long()).logits[0, :-1]
            losses.append(
                torch.nn.functional.cross_entropy(logits[targets[1:]], tokens[1:][targets[1:]].long(), reduction="sum")
            )
            num_targets += int(targets.sum())
        loss = sum(losses) / num_targets
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        assert row["loss"] == pytest.approx(loss.item(), rel=1e-6)
        assert row["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    theirs = dict(model.named_parameters())
    for name, weight in weights(ours).items():
        assert torch.allclose(weight, theirs[name], atol=2e-6), name


def test_two_rows_in_a_batch_and_two_accumulated_rows_train_alike(tiny_model_dir, tmp_path):
    common = {"max_steps": 4, "learning_rate": 1e-3}
    _, batch, one = train(make_run(tmp_path, tiny_model_dir, per_device_train_batch_size=2, name="a", **common))
    _, accumulated, two = train(make_run(tmp_path, tiny_model_dir, gradient_accumulation_steps=2, name="b", **common))
    for left, right in zip(batch.train_rows, accumulated.train_rows, strict=True):
        assert left["num_targets"] == right["num_targets"]
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-5)
        assert left["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-4)
    for name, weight in weights(one).items():
        assert torch.allclose(weight, weights(two)[name], atol=1e-5), name


@pytest.mark.parametrize("part", ["", "with_empty_micro"])
def test_a_window_is_divided_by_its_targets_not_by_its_micro_batches(tiny_model_dir, tmp_path, monkeypatch, part):
    """Bug case B02a, k02_ga_numbers.json: 120 over 110 targets is 1.0909, the mean of means would be 1.5."""
    case = json.loads((DATA / "k02_ga_numbers.json").read_text("utf-8"))
    case = case[part] if part else case
    directory = make_run(tmp_path, tiny_model_dir, LORA, max_steps=1, gradient_accumulation_steps=2)
    channel = RecordingChannel()
    built = build(directory, channel)
    counts = iter([micro["valid_tokens"] for micro in case["micro"]])
    sums = iter([micro["loss_sum"] for micro in case["micro"]])
    row = built.batches.row
    built.batches.row = lambda epoch, index: replace(row(epoch, index), num_targets=next(counts))
    forward = trainer.forward_loss
    monkeypatch.setattr(trainer, "forward_loss", lambda setup, shard: forward(setup, shard) * 0 + next(sums))
    built.run()
    assert channel.train_rows[0]["num_targets"] == sum(micro["valid_tokens"] for micro in case["micro"])
    assert channel.train_rows[0]["loss"] == pytest.approx(case["right_loss"], rel=1e-6)


def test_packing_trains_the_same_samples_in_fewer_steps(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir, LORA, setting("packing"), max_steps=-1, num_train_epochs=1)
    seen, channel = ids_seen(directory)
    assert sorted(sample for pack in seen for sample in pack) == list(range(10))
    assert len(channel.train_rows) == 3  # 162 tokens in packs of 64
    assert sum(row["tokens"] for row in channel.train_rows) == 162
    assert [evidence["optimization"] for evidence in channel.of("evidence")] == ["attention", "packing", "lora"]


def test_shorter_packs_leave_longer_samples_alone(tiny_model_dir, tmp_path):
    packing = setting("packing", length=16)
    directory = make_run(tmp_path, tiny_model_dir, LORA, packing, max_steps=-1, num_train_epochs=1)
    seen, channel = ids_seen(directory)
    assert sorted(sample for pack in seen for sample in pack) == list(range(10))
    by_row = sorted((row["tokens"], len(pack)) for row, pack in zip(channel.train_rows, seen, strict=True))
    assert max(by_row) > (16, 1)
    assert all(tokens <= 16 or samples == 1 for tokens, samples in by_row)
    assert any(samples > 1 for _, samples in by_row)


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "wsd"])
@pytest.mark.parametrize("warmup", [{"warmup_ratio": 0.3}, {"warmup_steps": 3, "warmup_ratio": 0.9}])
def test_learning_rate_follows_schedule_and_warmup(tiny_model_dir, tmp_path, kind, warmup):
    _, channel, _ = train(make_run(tmp_path, tiny_model_dir, max_steps=10, lr_scheduler_type=kind, **warmup))
    expected = [1e-2 * learning_rate_factor(kind, step, total_steps=10, warmup_steps=3) for step in range(10)]
    assert [row["learning_rate"] for row in channel.train_rows] == expected


def one_step_weights(tiny_model_dir, tmp_path, name, **overrides):
    return weights(train(make_run(tmp_path, tiny_model_dir, *FULL, max_steps=1, name=name, **overrides))[2])


def test_weight_decay_shrinks_matrices_by_rate_times_decay_and_leaves_vectors(tiny_model_dir, tmp_path):
    before = load_file(tiny_model_dir / "model.safetensors")
    without = one_step_weights(tiny_model_dir, tmp_path, "without")
    decayed = one_step_weights(tiny_model_dir, tmp_path, "with", weight_decay=0.5)
    for name, weight in decayed.items():
        shrunk = 1e-2 * 0.5 * before[name] if weight.ndim == 2 else torch.zeros_like(weight)
        assert torch.allclose(without[name] - weight, shrunk, atol=1e-6), name


def test_adam_settings_reach_the_update(tiny_model_dir, tmp_path):
    """The first step of Adam is lr * g / (|g| + eps) whatever the betas; the second one depends on them."""
    before = load_file(tiny_model_dir / "model.safetensors")
    damped = one_step_weights(tiny_model_dir, tmp_path, "damped", adam_epsilon=1e6)
    assert all(torch.allclose(weight, before[name], atol=1e-7) for name, weight in damped.items())
    two = {"max_steps": 2, "lr_scheduler_type": "constant"}
    usual, other = (
        weights(train(make_run(tmp_path, tiny_model_dir, name=f"beta{beta}", adam_beta1=beta, **two))[2])
        for beta in (0.9, 0.1)
    )
    assert any(not torch.allclose(usual[name], other[name], atol=1e-4) for name in usual)


def test_clipping_bounds_the_update_and_reports_the_norm_before_it(tiny_model_dir, tmp_path):
    # With a huge epsilon the update is lr * g / eps: proportional to the gradient, unlike Adam's usual one.
    damped = {"adam_epsilon": 1e3, "learning_rate": 1e3, "lr_scheduler_type": "constant"}
    before = load_file(tiny_model_dir / "model.safetensors")
    norms = {}
    for max_grad_norm in (0.0, 0.25):
        name = f"clip{max_grad_norm}"
        directory = make_run(
            tmp_path, tiny_model_dir, *FULL, max_steps=1, max_grad_norm=max_grad_norm, name=name, **damped
        )
        _, channel, ours = train(directory)
        update = torch.sqrt(sum(((w - before[n]) ** 2).sum() for n, w in weights(ours).items())).item()
        norms[max_grad_norm] = (channel.train_rows[0]["grad_norm"], update)
    reported, update = norms[0.0]
    assert reported > 0.5
    assert update == pytest.approx(reported, rel=2e-2)
    assert norms[0.25] == (reported, pytest.approx(0.25, rel=2e-2))


def test_fused_adamw_gives_the_losses_of_the_plain_one(tiny_model_dir, tmp_path):
    _, plain, _ = train(make_run(tmp_path, tiny_model_dir, name="plain"))
    _, fused, ours = train(make_run(tmp_path, tiny_model_dir, optim="adamw_torch_fused", name="fused"))
    assert ours.optimizer.param_groups[0]["fused"] is True
    losses = [[row["loss"] for row in channel.train_rows] for channel in (plain, fused)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_logged_rows_cover_their_steps_token_weighted_and_the_last_step_always_has_one(tiny_model_dir, tmp_path):
    _, each, _ = train(make_run(tmp_path, tiny_model_dir, max_steps=7, name="each"))
    _, third, _ = train(make_run(tmp_path, tiny_model_dir, max_steps=7, logging_steps=3, name="third"))
    assert [row["step"] for row in third.train_rows] == [3, 6, 7]
    for row, steps in zip(third.train_rows, (slice(0, 3), slice(3, 6), slice(6, 7)), strict=True):
        parts = each.train_rows[steps]
        assert row["num_targets"] == sum(part["num_targets"] for part in parts)
        assert row["tokens"] == sum(part["tokens"] for part in parts)
        mean = sum(part["loss"] * part["num_targets"] for part in parts) / row["num_targets"]
        assert row["loss"] == pytest.approx(mean, rel=1e-12)
        assert row["learning_rate"] == parts[-1]["learning_rate"]


@pytest.mark.parametrize("optimizations", [(LORA,), (LORA, setting("packing"))])
def test_held_out_loss_is_that_of_the_loaded_checkpoint_in_peft(tiny_model_dir, tmp_path, optimizations):
    dropout = setting("lora", **dict(LORA.knobs) | {"dropout": 0.5})
    directory = make_run(
        tmp_path, tiny_model_dir, dropout, *optimizations[1:], eval_lengths=(40, 5, 17), eval_steps=4, max_steps=6
    )
    _, channel, _ = train(directory)
    assert [event["step"] for event in channel.of("evaluation")] == [0, 4, 6]
    assert [row["eval_loss"] for row in channel.rows if "eval_loss" in row] == [
        event["loss"] for event in channel.of("evaluation")
    ]
    store = TokenStore(directory.path / "eval.store")
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    loss, num_targets = plain_eval_loss(base, store)
    assert channel.of("evaluation")[0]["loss"] == pytest.approx(loss, rel=1e-5)
    assert channel.of("evaluation")[0]["num_targets"] == num_targets
    adapted = PeftModel.from_pretrained(base, directory.checkpoints / "step-6")
    assert channel.of("evaluation")[-1]["loss"] == pytest.approx(plain_eval_loss(adapted, store)[0], rel=1e-5)


def test_more_rows_in_an_evaluation_batch_give_the_same_loss_in_fewer_forwards(tiny_model_dir, tmp_path, monkeypatch):
    forward, losses, forwards = evaluate.forward_loss, [], []
    for batch in (1, 4):
        seen = []
        monkeypatch.setattr(
            evaluate, "forward_loss", lambda setup, shard, seen=seen: (seen.append(1), forward(setup, shard))[1]
        )
        directory = make_run(
            tmp_path, tiny_model_dir, max_steps=1, eval_lengths=(12, 5, 30, 9, 21), per_device_eval_batch_size=batch,
            name=f"batch{batch}",
        )  # fmt: skip
        _, channel, _ = train(directory)
        losses.append(channel.of("evaluation")[0]["loss"])
        forwards.append(len(seen))
    assert forwards == [10, 4]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_evaluating_changes_nothing_in_the_training_with_dropout(tiny_model_dir, tmp_path):
    dropout = setting("lora", **dict(LORA.knobs) | {"dropout": 0.5})
    _, without, _ = train(make_run(tmp_path, tiny_model_dir, dropout, name="without"))
    _, evaluated, _ = train(
        make_run(tmp_path, tiny_model_dir, dropout, eval_lengths=(20, 9), eval_steps=1, name="with")
    )
    rows = [row for row in curve(evaluated) if "loss" in row]
    assert rows == curve(without)


def test_seed_settles_order_and_adapters_and_another_seed_differs(tiny_model_dir, tmp_path):
    losses = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        _, channel, _ = train(make_run(tmp_path, tiny_model_dir, seed=seed, name=name))
        losses.append(curve(channel))
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_memory_rows_name_every_instant_and_the_peak_is_at_least_each_of_them(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir, eval_lengths=(30,), save_steps=3)
    _, channel, ours = train(directory)
    instants = {row["instant"] for row in channel.memory_rows}
    assert instants == {"load", "evaluation", "forward", "backward", "step", "save"}
    assert ours.meter.peak.reading.used_bytes >= max(row["used_bytes"] for row in channel.memory_rows)
