"""The MLP by tiles: the numbers of the whole one in every combination, nothing wide that outlives its tile."""

from __future__ import annotations

import pytest
import torch

from core.model.tiled_mlp import TiledForward, tiles_of
from core.optimizations import REGISTRY
from core.optimizations.evidence import NotActive
from core.parallel.layout import shard_row
from core.train.build import verify_setup
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

ROW = random_row((26, 1, 14))
COMBINATIONS = {
    "full": (),
    "lora": (setting("lora", rank=3),),
    "adapters of the attention only": (setting("lora", rank=3, targets="q_proj,v_proj"),),
    "checkpointing": (setting("lora", rank=3), setting("gradient_checkpointing")),
    "a layer that is not recomputed": (setting("gradient_checkpointing", kept_layers=1),),
    "everything": (
        setting("lora", rank=3), setting("gradient_checkpointing", save_attention=True), setting("checkpoint_offload"),
        setting("fake_parallel", groups=3), setting("fused_loss", chunk_tokens=7), setting("packing"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("combination", COMBINATIONS.values(), ids=COMBINATIONS)
@pytest.mark.parametrize("tiles", [1, 3, 1000])
def test_loss_and_every_gradient_are_those_of_the_whole_mlp(combination, tiles):
    want_loss, want = loss_and_gradients(tiny_setup(tiny_model(), *combination), ROW)
    loss, got = loss_and_gradients(tiny_setup(tiny_model(), *combination, setting("tiled_mlp", tiles=tiles)), ROW)
    assert abs(loss - want_loss) < 1e-9
    assert_same_gradients(got, want, 1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_plain_transformers(family):
    want_loss, want = plain_loss_and_gradients(tiny_model(family, attention="sdpa"), ROW)
    loss, got = loss_and_gradients(tiny_setup(tiny_model(family), setting("tiled_mlp", tiles=4)), ROW)
    assert abs(loss - want_loss) < 1e-9
    assert_same_gradients(got, want, 1e-8)


def test_weight_gradients_of_16_bit_tiles_are_summed_in_float32():
    def error(tiles):
        setup = tiny_setup(tiny_model(dtype=torch.bfloat16), setting("tiled_mlp", tiles=tiles))
        _, got = loss_and_gradients(setup, ROW)
        _, want = loss_and_gradients(tiny_setup(tiny_model(dtype=torch.float32)), ROW)
        name = "model.layers.1.mlp.down_proj.weight"
        return ((got[name].float() - want[name]).norm() / want[name].norm()).item()

    assert error(41) < 1.5 * error(1)


def test_between_forward_and_backward_a_layer_keeps_nothing_as_wide_as_its_mlp():
    setup = tiny_setup(tiny_model(intermediate_size=400), setting("lora", rank=3), setting("tiled_mlp", tiles=4))
    widths = []

    def pack(x):
        widths.extend(x.shape[-1:])
        return x

    weights = {p.untyped_storage().data_ptr() for p in setup.model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: x if x.untyped_storage().data_ptr() in weights else pack(x), lambda x: x
    ):
        forward_loss(setup, shard_row(ROW, setup.mesh, setup.device))
    assert widths
    assert 400 not in widths


def test_the_proof_counts_the_modules_it_runs_in_and_patches_are_taken_back():
    setup = tiny_setup(tiny_model(layers=3), setting("tiled_mlp", tiles=4))
    loss_and_gradients(setup, ROW)
    [evidence] = verify_setup(setup, REGISTRY)
    assert evidence.claim == "3 of 3 MLPs work in 4 tiles"
    setup.restore()
    assert not any(isinstance(layer.mlp.forward, TiledForward) for layer in setup.causal_lm.get_decoder().layers)
    with pytest.raises(NotActive, match="0 of 3"):
        verify_setup(setup, REGISTRY)


@pytest.mark.parametrize(
    ("tokens", "tiles", "sizes"), [(10, 3, [4, 4, 2]), (3, 8, [1, 1, 1]), (8, 1, [8]), (0, 4, [0])]
)
def test_tiles_cover_all_tokens_once(tokens, tiles, sizes):
    bounds = tiles_of(tokens, tiles)
    assert [rows.stop - rows.start for rows in bounds] == sizes
    assert [token for rows in bounds for token in range(rows.start, rows.stop)] == list(range(tokens))
