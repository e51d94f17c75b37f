"""Weights in host memory, two layers at a time on the device: bit for bit the run without, whoever computes layers."""

from __future__ import annotations

import pytest
import torch

from core.model.load import load_model
from core.model.placement import Placement
from core.offload.streamed_weights import StreamedWeights
from core.optimizations import REGISTRY
from core.optimizations.evidence import NotActive
from core.parallel.layout import shard_row
from core.train.build import build_setup, verify_setup
from core.train.forward import forward_loss
from planner.errors import ConfigError
from tests.core.model.tiny_models import (
    CPU,
    loss_and_gradients,
    random_row,
    run_config,
    setting,
    tiny_model,
    tiny_setup,
)

ROWS = (random_row((26, 1, 14)), random_row((9, 50), seed=3))
LORA, FUSED = setting("lora", rank=3), setting("fused_loss", chunk_tokens=16)
LAYERS = setting("weight_streaming", embeddings="resident")
TABLES = setting("weight_streaming", embeddings="streamed")
CHECKPOINTING = setting("gradient_checkpointing", save_attention=False, kept_layers=0)
SAVING = setting("gradient_checkpointing", save_attention=True, kept_layers=0)
SHAPE = {"heads": 8, "kv_heads": 4, "layers": 5, "dtype": torch.float32}
COMBINATIONS = {
    "every tensor kept": (),
    "recomputed": (CHECKPOINTING,),
    "kept attention": (SAVING,),
    "some layers whole": (setting("gradient_checkpointing", save_attention=True, kept_layers=2),),
    "inputs offloaded": (SAVING, setting("checkpoint_offload", kept_layers=1)),
    "head groups and tiles": (CHECKPOINTING, setting("fake_parallel", groups=2), setting("tiled_mlp", tiles=3)),
}


def placed(*optimizations, family="llama", dtype="float32", **shape):
    """The run of load_model's placement over a tiny model."""
    model = tiny_model(family, **{**SHAPE, **shape}).requires_grad_(False)
    placement = Placement(run_config(optimizations, dtype=dtype), CPU)
    for layer in model.get_decoder().layers:
        placement.layer(layer)
    placement.rest(model)
    return model


def two_steps(*optimizations, engine, family="llama", **shape):
    setup = tiny_setup(placed(*optimizations, family=family, **shape), *optimizations, engine=engine)
    for name, parameter in setup.model.named_parameters():
        if ".lora_B." in name:
            parameter.data += torch.linspace(-0.1, 0.1, parameter.numel()).view_as(parameter)
    with torch.no_grad():  # an evaluation goes upwards only
        evaluation = forward_loss(setup, shard_row(ROWS[1], setup.mesh, CPU))
    return setup, evaluation, [loss_and_gradients(setup, row) for row in ROWS]


def assert_same(streamed, *others, engine, **shape):
    _, want_evaluation, want = two_steps(*others, engine=engine, **shape)
    setup, evaluation, got = two_steps(*others, streamed, engine=engine, **shape)
    assert evaluation == want_evaluation
    for (loss, gradients), (want_loss, want_gradients) in zip(got, want):
        assert loss == want_loss
        assert gradients.keys() == want_gradients.keys() != set()
        assert all(torch.equal(gradients[name], want_gradients[name]) for name in want_gradients)
    assert "weight_streaming" in {evidence.optimization for evidence in verify_setup(setup, REGISTRY)}
    return setup


@pytest.mark.parametrize("combination", COMBINATIONS.values(), ids=COMBINATIONS)
@pytest.mark.parametrize("engine", ["module", "layer"])
def test_loss_and_gradients_are_bit_for_bit_those_of_resident_weights(engine, combination):
    assert_same(LAYERS, LORA, *combination, engine=engine)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("engine", ["module", "layer"])
def test_with_embeddings_and_head_on_the_host_too(engine, tied):
    setup = assert_same(TABLES, LORA, FUSED, CHECKPOINTING, engine=engine, tie_word_embeddings=tied)
    assert setup.streamed.tables.num_heads_brought == 3
    one = setup.spec.vocab_size * setup.spec.hidden_size * 4
    assert setup.streamed.tables.host_bytes == (one if tied else 2 * one)


@pytest.mark.parametrize(
    ("family", "shape"),
    [("qwen2", {}), ("qwen3", {}), ("mistral", {"layers": 3}), ("gemma3_text", {}),
     ("phi3", {"pad_token_id": 0}), ("glm4", {"pad_token_id": 0}),
     ("qwen3_moe", {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2})],
)  # fmt: skip
def test_other_families(family, shape):
    assert_same(TABLES, LORA, FUSED, CHECKPOINTING, engine="module", family=family, **shape)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_few_layers(layers):
    assert_same(LAYERS, LORA, CHECKPOINTING, engine="layer", layers=layers)


@pytest.mark.parametrize("engine", ["module", "layer"])
@pytest.mark.parametrize("double_quant", [True, False])
def test_4_bit_layers_and_their_scales_travel(engine, double_quant):
    qlora = setting("qlora", rank=3, double_quant=double_quant)
    assert_same(LAYERS, qlora, CHECKPOINTING, engine=engine, intermediate_size=128, heads=12, kv_heads=4)


def test_each_pass_copies_what_is_not_there_already():
    setup, _, _ = two_steps(LORA, CHECKPOINTING, LAYERS, engine="layer")
    streamed, brought = setup.streamed, setup.streamed.num_brought
    loss_and_gradients(setup, ROWS[0])
    assert streamed.num_brought - brought == 2 * (5 - 2)
    layer = sum(p.numel() * 4 for n, p in setup.causal_lm.get_decoder().layers[0].named_parameters() if "lora" not in n)
    padding = 256 * 9
    assert 2 * layer <= streamed.held_bytes <= 2 * (layer + padding)
    assert 5 * layer <= streamed.host_bytes <= 5 * (layer + padding)


def test_layers_share_the_memory_of_every_second_one():
    layers = placed(LAYERS).get_decoder().layers
    places = [{p.untyped_storage().data_ptr() for p in layer.parameters()} for layer in layers]
    assert all(len(place) == 1 for place in places)
    assert places[0] == places[2] == places[4] != places[1] == places[3]


def test_the_proof_can_fail():
    setup = tiny_setup(placed(LAYERS), LORA, CHECKPOINTING, LAYERS, engine="module")
    with pytest.raises(NotActive, match="0 of 5 layers were brought"):
        REGISTRY["weight_streaming"]().verify(setup)
    loss_and_gradients(setup, ROWS[0])
    verify_setup(setup, REGISTRY)
    norm = setup.causal_lm.get_decoder().layers[3].input_layernorm
    norm.weight.data = norm.weight.data.clone()
    with pytest.raises(NotActive, match="1 frozen tensors of the layers"):
        verify_setup(setup, REGISTRY)
    with pytest.raises(NotActive, match="all of its weights on the device"):
        tiny_setup(tiny_model(**SHAPE), LORA, LAYERS)


def test_weights_that_are_trained_are_refused():
    with pytest.raises(ConfigError, match="decoder layer is trained"):
        StreamedWeights(CPU).take(tiny_model().get_decoder().layers[0])


@pytest.mark.parametrize("streamed", [LAYERS, TABLES], ids=["layers", "tables"])
def test_a_loaded_model_gives_the_same(tmp_path, streamed):
    tiny_model(layers=4, dtype=torch.float32).save_pretrained(tmp_path)

    def run(*optimizations):
        config = run_config((LORA, FUSED, CHECKPOINTING, *optimizations), model=str(tmp_path), engine="layer")
        model, spec = load_model(config, CPU)
        setup = build_setup(config, spec, model, setup_mesh(), CPU, lambda *_: None, REGISTRY)
        return setup, loss_and_gradients(setup, ROWS[0])

    _, (want_loss, want) = run()
    setup, (loss, got) = run(streamed)
    assert loss == want_loss
    assert all(torch.equal(got[name], want[name]) for name in want)
    tables = setup.streamed.tables
    assert (tables is None) == (streamed is LAYERS)
    setup.restore()


def setup_mesh():
    return tiny_setup(tiny_model(dtype=torch.float32)).mesh
