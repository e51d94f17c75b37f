"""Loss scaling is a power of two: in float32 it changes no bit, so that its effect can be tested without a GPU."""

import math
from dataclasses import replace

import pytest
import torch

from core.train import trainer
from core.train.loss_scale import GROWTH_INTERVAL, SMALLEST, LossScale
from core.train.trainer import NonFinite
from planner.errors import ConfigError
from tests.core.train.runs import LORA, RecordingChannel, build, curve, make_run, setting, train, weights


def scaled(directory, scale, *, stop_after=None):
    """A trainer of a float32 run that scales its loss as one in float16 does."""
    channel = RecordingChannel(stop_after)
    built = build(directory, channel)
    if built.progress.step == 0:
        built.progress = replace(built.progress, loss_scale=scale)
    return built, channel


def test_scale_doubles_after_its_interval_and_halves_on_overflow():
    scale = LossScale()
    for _ in range(GROWTH_INTERVAL - 1):
        scale = scale.after_good_step()
    assert (scale.value, scale.after_good_step()) == (65536.0, LossScale(value=131072.0))
    assert scale.after_overflow() == LossScale(value=32768.0)
    assert not scale.is_exhausted
    assert LossScale(value=SMALLEST).is_exhausted


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
def test_a_scaled_run_is_the_unscaled_one_bit_for_bit(tiny_model_dir, tmp_path, max_grad_norm):
    _, plain, expected = train(make_run(tmp_path, tiny_model_dir, name="plain", max_grad_norm=max_grad_norm))
    built, channel = scaled(make_run(tmp_path, tiny_model_dir, name="scaled", max_grad_norm=max_grad_norm), LossScale())
    built.run()
    assert curve(channel) == curve(plain)
    assert built.progress.loss_scale == LossScale(num_good_steps=6)
    for name, weight in weights(expected).items():
        assert torch.equal(weights(built)[name], weight), name


def overflowing(monkeypatch, built, *, above):
    """A backward whose gradients overflow when the loss was scaled by more than ``above``, as float16 does."""
    forward = trainer.forward_loss

    def forward_loss(setup, shard):
        loss = forward(setup, shard)
        if built.progress.loss_scale.value > above:
            loss.register_hook(lambda gradient: gradient * math.inf)
        return loss

    monkeypatch.setattr(trainer, "forward_loss", forward_loss)


def test_an_overflow_costs_its_step_halves_the_scale_and_survives_a_resume(tiny_model_dir, tmp_path, monkeypatch):
    directory = make_run(tmp_path, tiny_model_dir, max_steps=5)
    built, channel = scaled(directory, LossScale(), stop_after=4)
    overflowing(monkeypatch, built, above=2.0**14)
    before = weights(built)
    update = built.optimizer.step
    seen = []
    monkeypatch.setattr(built.optimizer, "step", lambda: (seen.append(built.progress.step), update()))
    assert built.run() == "stopped"
    assert channel.of("skipped") == [{"step": 1, "loss_scale": 65536.0}, {"step": 2, "loss_scale": 32768.0}]
    assert seen == [2, 3]
    assert [row["grad_norm"] is None for row in channel.train_rows] == [True, True, False, False]
    assert any(not torch.equal(before[name], weight) for name, weight in weights(built).items())
    again, _ = scaled(directory, None)
    assert again.progress.loss_scale == LossScale(value=16384.0, num_good_steps=2)


def test_gradients_that_overflow_at_every_scale_stop_the_run(tiny_model_dir, tmp_path, monkeypatch):
    built, channel = scaled(make_run(tmp_path, tiny_model_dir, max_steps=100), LossScale(value=SMALLEST * 4))
    overflowing(monkeypatch, built, above=0.0)
    with pytest.raises(NonFinite, match="The gradient of step 3 is not finite on rank 0"):
        built.run()
    assert len(channel.of("skipped")) == 2


def test_trainable_float16_parameters_are_refused_with_what_to_write_instead(tiny_model_dir, tmp_path):
    half = setting("lora", **dict(LORA.knobs) | {"adapter_dtype": "float16"})
    with pytest.raises(ConfigError, match=r"28 trainable parameters are float16.*adapter_dtype: float32"):
        build(make_run(tmp_path, tiny_model_dir, half), RecordingChannel())


def test_a_float16_run_scales_its_loss(tiny_model_dir, tmp_path):
    built = build(make_run(tmp_path, tiny_model_dir, dtype="float16", autocast=True), RecordingChannel())
    assert built.progress.loss_scale == LossScale()
