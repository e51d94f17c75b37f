"""`update: layer` takes the steps of `update: step`, and holds no more than one part's gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from core.train.layer_update import LayerUpdate
from core.train.trainer import NonFinite
from tests.core.model.tiny_models import tiny_model
from tests.core.train.runs import RecordingChannel, build, crash, curve, make_run, setting, train, weights

OPTIMIZERS = {
    "AdamW": {},
    "fused": {"optim": "adamw_torch_fused"},
    "float32 masters of bfloat16": {"dtype": "bfloat16", "master_weights": "fp32"},
    "8 bits": {"optim": "adamw_8bit"},
    "rounding by chance": {"dtype": "bfloat16", "master_weights": "stochastic"},
    "GaLore": {"galore": setting("galore", rank=2, update_proj_gap=2, scale=0.25, proj_type="std")},
}
WAYS = {
    "checkpointing": (setting("gradient_checkpointing"),),
    "fused loss": (setting("fused_loss", chunk_tokens=16),),
}


def layer_run(tmp_path, tiny_model_dir, *optimizations, update="layer", **values):
    return make_run(
        tmp_path, tiny_model_dir, *(optimizations or WAYS["checkpointing"]), name=update, update=update, max_steps=3,
        max_grad_norm=0.0, gradient_accumulation_steps=1, **values,
    )  # fmt: skip


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("values", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_weights_and_curve_are_those_of_a_step_bit_for_bit(tmp_path, tiny_model_dir, values, ways):
    optimizations = (*ways, *(each for each in (values.get("galore"),) if each))
    values = {key: value for key, value in values.items() if key != "galore"}
    (_, step, by_step), (_, layer, by_layer) = (
        train(layer_run(tmp_path, tiny_model_dir, *optimizations, update=update, **values))
        for update in ("step", "layer")
    )
    got, want = weights(by_layer), weights(by_step)
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    for ours, theirs in zip(layer.train_rows, step.train_rows, strict=True):
        assert ours["loss"] == theirs["loss"]
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-6)
    claims = [event["claim"] for event in layer.of("evidence")]
    assert any("parts of the model were updated within a backward" in claim for claim in claims)


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
def test_no_more_than_one_part_has_gradients_and_tied_weights_wait_for_both(tied):
    model = tiny_model(layers=3, tie_word_embeddings=tied)
    parameters = list(model.parameters())
    sizes: list[int] = []

    class Spy(torch.optim.SGD):
        def step(self, closure=None):
            sizes.append(sum(p.grad.numel() for p in parameters if p.grad is not None))
            super().step(closure)

    want = tiny_model(layers=3, tie_word_embeddings=tied)
    update = LayerUpdate(model, Spy(parameters, lr=0.1), world=1)
    ids = torch.arange(12)[None]
    for each in (model, want):
        each.set_attn_implementation("sdpa")
        each(input_ids=ids, labels=ids).loss.backward()
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad) for p in want.parameters()]))
    torch.optim.SGD(want.parameters(), lr=0.1).step()
    assert [norm.item()] * 2 == pytest.approx([x.item() for x in update.finish()])
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    embeddings, norm_size = model.lm_head.weight.numel(), model.model.norm.weight.numel()
    waiting = embeddings if tied else 0  # until the embeddings' own gradient is there
    assert sizes[0] == norm_size + (0 if tied else embeddings)
    assert sizes[1:-1] == [layer] * 3
    assert sizes[-1] == embeddings
    assert waiting in (0, embeddings)
    for ours, theirs in zip(model.parameters(), want.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_part_without_gradients_is_left_as_it_is_and_later_ones_are_updated():
    model = tiny_model(layers=2)
    before: dict[str, Tensor] = {name: p.clone() for name, p in model.named_parameters()}
    update = LayerUpdate(model, torch.optim.SGD(model.parameters(), lr=0.1), world=1)
    layer = model.model.layers[0]
    sum(parameter.sum() for parameter in layer.parameters()).backward()  # as if the upper ones had no share
    update.finish()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) != name.startswith("model.layers.0.")


def test_a_loss_that_is_no_number_changes_nothing(tmp_path, tiny_model_dir, monkeypatch):
    built = build(layer_run(tmp_path, tiny_model_dir), RecordingChannel())
    before = [parameter.clone() for parameter in built.parameters]
    monkeypatch.setattr("core.train.trainer.forward_loss", lambda *_: built.parameters[0].sum() * float("nan"))
    with pytest.raises(NonFinite, match=r"loss of step 1 is not finite on rank 0\. The step was not taken"):
        built.run()
    assert all(torch.equal(a, b) for a, b in zip(before, built.parameters))


def test_a_gradient_that_is_no_number_ends_the_run_and_says_what_became_of_the_weights(tmp_path, tiny_model_dir):
    directory = layer_run(tmp_path, tiny_model_dir)
    built = build(directory, RecordingChannel())
    built.parameters[0].register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(NonFinite, match="Layers were updated with it, which no checkpoint has"):
        built.run()
    assert list(directory.checkpoints.iterdir()) == []


def test_a_killed_run_resumes_to_the_same_curve(tmp_path, tiny_model_dir):
    values = {"dtype": "bfloat16", "master_weights": "stochastic", "save_steps": 1}
    _, whole, trainer = train(layer_run(tmp_path / "whole", tiny_model_dir, **values))
    directory = layer_run(tmp_path / "killed", tiny_model_dir, **values)
    before = crash(directory, after=2)
    _, after, resumed = train(directory)
    assert curve(before)[:1] + curve(after) == curve(whole)
    got, want = weights(resumed), weights(trainer)
    assert all(torch.equal(got[name], want[name]) for name in want)
