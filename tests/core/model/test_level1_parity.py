"""The engine of one process against plain transformers: loss and every gradient, dense and packed."""

from __future__ import annotations

import pytest
import torch

from core.parallel.layout import shard_row
from core.train.forward import forward_loss
from tests.core.model.tiny_models import (
    FAMILIES,
    assert_same_gradients,
    loss_and_gradients,
    plain_loss_and_gradients,
    random_row,
    setting,
    tiny_model,
    tiny_setup,
)

TOLERANCE = {torch.float64: (1e-9, 1e-8), torch.float32: (1e-5, 2e-4)}  # loss absolute/relative, gradients relative
ROWS = {"dense": (37,), "packed": (13, 1, 30, 9), "prompted": (25, 18)}


def row_of(kind: str, seed: int = 0):
    return random_row(ROWS[kind], seed=seed, first_target=(lambda i: 11 if i == 0 else 18) if kind == "prompted" else 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ROWS)
def test_loss_and_every_gradient_equal_plain_transformers(family, kind):
    row = row_of(kind)
    want_loss, want = plain_loss_and_gradients(tiny_model(family, attention="sdpa"), row)
    loss, got = loss_and_gradients(tiny_setup(tiny_model(family)), row)
    assert abs(loss - want_loss) < 1e-9
    assert_same_gradients(got, want, 1e-8)


def test_the_matrix_form_of_attention_agrees_too():
    """transformers' eager path takes its softmax in float32 whatever the model's dtype, so this one is float32."""
    row = row_of("packed")
    want_loss, want = plain_loss_and_gradients(tiny_model(attention="eager", dtype=torch.float32), row)
    loss, got = loss_and_gradients(tiny_setup(tiny_model(dtype=torch.float32)), row)
    assert abs(loss - want_loss) < 1e-5 * want_loss
    assert_same_gradients(got, want, 2e-4)


COMBINATIONS = {
    "fused_loss": (setting("fused_loss", chunk_tokens=7),),
    "checkpointing": (setting("gradient_checkpointing"),),
    "both packed": (setting("packing"), setting("gradient_checkpointing"), setting("fused_loss", chunk_tokens=1024)),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("tied", [False, True])
def test_optimizations_keep_loss_and_every_gradient(dtype, combination, tied):
    row = row_of("packed")
    shape = {"dtype": dtype, "tie_word_embeddings": tied}
    want_loss, want = plain_loss_and_gradients(tiny_model("qwen2", attention="sdpa", **shape), row)
    loss, got = loss_and_gradients(tiny_setup(tiny_model("qwen2", **shape), *COMBINATIONS[combination]), row)
    loss_tolerance, gradient_tolerance = TOLERANCE[dtype]
    assert abs(loss - want_loss) < loss_tolerance * (1 if dtype == torch.float64 else want_loss)
    assert_same_gradients(got, want, gradient_tolerance)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_replacing_one_packed_sample_moves_no_other(family):
    """Per-sample gradients of the embedding rows tell whether one sample sees another."""
    model = tiny_model(family, attention="sdpa")
    lengths = (13, 20, 9)
    row, other = random_row(lengths, seed=1), random_row(lengths, seed=2)
    for x, y in ((row.input_ids, other.input_ids), (row.labels, other.labels)):
        y[13:] = x[13:]
    setup = tiny_setup(tiny_model(family))
    losses = []
    for each in (row, other):
        only_last_two = each.labels.clone()
        only_last_two[:13] = -100
        each.labels.copy_(only_last_two)
        losses.append(loss_and_gradients(setup, each)[0])
    assert losses[0] == losses[1]
    assert abs(losses[0] - plain_loss_and_gradients(model, row)[0]) < 1e-9


def test_a_row_without_targets_gives_zero_loss_and_zero_gradients():
    row = random_row((17, 4), first_target=99)
    assert row.num_targets == 0
    for optimizations in ((), (setting("fused_loss", chunk_tokens=8),)):
        loss, got = loss_and_gradients(tiny_setup(tiny_model(), *optimizations), row)
        assert loss == 0
        assert got
        assert all((gradient == 0).all() for gradient in got.values())


def test_evaluation_without_gradients_gives_the_loss_of_training():
    row = row_of("packed")
    everything = (*COMBINATIONS["both packed"], setting("fake_parallel", groups=3))
    setup = tiny_setup(tiny_model(), *everything)
    with torch.no_grad():
        evaluated = forward_loss(setup, shard_row(row, setup.mesh, setup.device))
    assert not evaluated.requires_grad
    assert evaluated == loss_and_gradients(setup, row)[0]


def test_sixteen_bit_engine_is_as_near_to_exact_as_transformers_own():
    """bfloat16 throughout, on the CPU: the distance of all gradients from the float64 ones."""
    row = row_of("packed")
    exact_loss, exact = plain_loss_and_gradients(tiny_model("qwen3", attention="sdpa"), row)
    shape = {"dtype": torch.bfloat16}
    stock_loss, stock = plain_loss_and_gradients(tiny_model("qwen3", attention="sdpa", **shape), row)
    everything = (*COMBINATIONS["both packed"], setting("fake_parallel", groups=3))
    loss, got = loss_and_gradients(tiny_setup(tiny_model("qwen3", **shape), *everything, dtype="bfloat16"), row)

    def distance(gradients):
        return sum((gradients[name].double() - exact[name]).norm() ** 2 for name in exact) ** 0.5

    assert abs(loss - exact_loss) <= 2 * abs(stock_loss - exact_loss) + 1e-3 * exact_loss
    assert distance(got) <= 1.5 * distance(stock)


@pytest.mark.parametrize("head_groups", [(), (setting("fake_parallel", groups=3),)], ids=["", "fake_parallel"])
def test_float32_adapters_on_a_sixteen_bit_base_train_with_and_without_autocast(head_groups):
    losses = []
    for autocast in (False, True):
        optimizations = (setting("lora", rank=3), setting("gradient_checkpointing"), *head_groups)
        setup = tiny_setup(
            tiny_model(dtype=torch.bfloat16), *optimizations, adapter_dtype=torch.float32, dtype="bfloat16",
            autocast=autocast,
        )  # fmt: skip
        loss, got = loss_and_gradients(setup, row_of("packed"))
        losses.append(loss)
        assert {gradient.dtype for gradient in got.values()} == {torch.float32}
        assert any(gradient.any() for gradient in got.values())
    assert abs(losses[0] - losses[1]) < 1e-2 * losses[0]


def test_full_training_of_float32_weights_under_autocast_takes_sixteen_bit_attention():
    shape = {"dtype": torch.float32}
    setup = tiny_setup(tiny_model("qwen3", **shape), dtype="bfloat16", autocast=True)
    loss, got = loss_and_gradients(setup, row_of("packed"))
    want_loss, want = plain_loss_and_gradients(tiny_model("qwen3", attention="sdpa", **shape), row_of("packed"))
    assert loss != want_loss
    assert abs(loss - want_loss) < 1e-2 * want_loss
    for name, gradient in got.items():
        assert gradient.dtype == torch.float32
        assert (gradient - want[name]).norm() < 0.1 * want[name].norm(), name


def test_transformers_builds_no_mask_for_our_attention(monkeypatch):
    from transformers import masking_utils

    def refuse(*_args, **_kwargs):
        raise AssertionError("a mask was built, or packing guessed from position ids")

    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", refuse)
    for name in ("sdpa_mask", "eager_mask", "flash_attention_mask"):
        monkeypatch.setattr(masking_utils, name, refuse)
    loss, _ = loss_and_gradients(tiny_setup(tiny_model()), row_of("packed"))
    assert loss > 0


def test_generating_with_the_training_attention_is_refused_with_the_way_out():
    with pytest.raises(RuntimeError, match=r"set_attn_implementation\('sdpa'\)"):
        tiny_model()(input_ids=torch.zeros(1, 3, dtype=torch.int64))
