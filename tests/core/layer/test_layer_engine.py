"""The layer engine against the plain path in float64: loss and every gradient, in every policy, for each family."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

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

LORA = setting("lora", rank=3, alpha=7, targets="all-linear", dropout=0.0, adapter_dtype="float32")
SHAPE = {"heads": 8, "kv_heads": 4, "head_dim": 6, "layers": 3}
LENGTHS = (13, 1, 30, 9)  # 53 tokens


def widen_norms(model: nn.Module) -> None:
    """transformers' norms round to float32 on their way; here they stay in the dtype of the model."""

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        return module.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.variance_epsilon))

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = forward.__get__(module)


def setup_of(family: str, engine: str, *optimizations, dtype: torch.dtype = torch.float64, **shape):
    arguments = {**SHAPE, "dtype": dtype, **shape}
    if family in ("llama", "qwen3") and "attention_bias" not in arguments:
        arguments["attention_bias"] = True
    model = tiny_model(family, **arguments)
    if dtype == torch.float64:
        widen_norms(model)
    setup = tiny_setup(model, LORA, *optimizations, engine=engine)
    for name, parameter in setup.model.named_parameters():
        if ".lora_B." in name:
            parameter.data += torch.linspace(-0.1, 0.1, parameter.numel(), dtype=parameter.dtype).view_as(parameter)
    return setup


def assert_equal(family: str, *optimizations, lengths=LENGTHS, **shape) -> None:
    row = random_row(lengths)
    want_loss, want = loss_and_gradients(setup_of(family, "module", **shape), row)
    setup = setup_of(family, "layer", *optimizations, **shape)
    loss, got = loss_and_gradients(setup, row)
    assert abs(loss - want_loss) <= 1e-9 * abs(want_loss)
    assert_same_gradients(got, want, 1e-8)
    again_loss, again = loss_and_gradients(setup, row)
    assert again_loss == loss
    assert_same_gradients(again, got, 0.0)
    verify_setup(setup, REGISTRY)


def checkpointing(**knobs):
    return setting("gradient_checkpointing", **{"save_attention": False, "kept_layers": 0, **knobs})


POLICIES = {
    "recompute all": (checkpointing(),),
    "keep attention": (checkpointing(save_attention=True),),
    "keep some layers whole": (checkpointing(save_attention=True, kept_layers=1),),
    "keep everything": (),
    "offload": (checkpointing(save_attention=True), setting("checkpoint_offload", kept_layers=1)),
    "offload inputs": (checkpointing(kept_layers=1), setting("checkpoint_offload", kept_layers=1)),
}


@pytest.mark.parametrize("lengths", [(53,), LENGTHS], ids=["one sample", "packed"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_by_head_groups(family: str, groups: int, lengths: tuple[int, ...]) -> None:
    assert_equal(family, checkpointing(save_attention=True), setting("fake_parallel", groups=groups), lengths=lengths)


@pytest.mark.parametrize("tiles", [1, 7])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_by_what_is_kept(family: str, policy: str, tiles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.layer_policy.TILE_TOKENS", 128 // tiles + (tiles > 1))  # of max_length 128
    assert_equal(family, *POLICIES[policy], setting("fake_parallel", groups=2))


SLIDING = {
    "mistral": {"sliding_window": 8},
    "qwen2": {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": {
        "sliding_window": 5, "use_sliding_window": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}  # fmt: skip


@pytest.mark.parametrize("policy", ["recompute all", "keep attention", "keep everything", "offload"])
@pytest.mark.parametrize("family", SLIDING)
def test_gradients_within_a_sliding_window(family: str, policy: str) -> None:
    assert_equal(family, *POLICIES[policy], setting("fake_parallel", groups=2), **SLIDING[family])


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_says_the_same(family: str) -> None:
    """With B at zero an adapter changes nothing, so that transformers without adapters has the same loss."""
    row = random_row(LENGTHS)
    want, _ = plain_loss_and_gradients(tiny_model(family, attention="sdpa", dtype=torch.float32, **SHAPE), row)
    model = tiny_model(family, dtype=torch.float32, **SHAPE)
    loss, _ = loss_and_gradients(tiny_setup(model, LORA, engine="layer"), row)
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)


def test_float32_equals_the_module_path() -> None:
    row = random_row(LENGTHS)
    want_loss, want = loss_and_gradients(setup_of("qwen3", "module", dtype=torch.float32), row)
    loss, got = loss_and_gradients(setup_of("qwen3", "layer", dtype=torch.float32), row)
    assert loss.item() == pytest.approx(want_loss.item(), rel=1e-6)
    assert_same_gradients(got, want, 2e-4)


@pytest.mark.parametrize("targets", ["q_proj,v_proj", "k_proj,o_proj,down_proj", "gate_proj"])
def test_adapters_on_some_linears_only(targets: str) -> None:
    lora = setting("lora", rank=3, alpha=7, targets=targets, dropout=0.0, adapter_dtype="float32")
    row = random_row(LENGTHS)
    results = []
    for engine in ("module", "layer"):
        model = tiny_model("llama", **SHAPE)
        widen_norms(model)
        setup = tiny_setup(model, lora, checkpointing(), engine=engine)
        results.append(loss_and_gradients(setup, row))
    (want_loss, want), (loss, got) = results
    assert abs(loss - want_loss) <= 1e-9 * abs(want_loss)
    assert_same_gradients(got, want, 1e-8)


def test_offload_changes_no_bit() -> None:
    row = random_row(LENGTHS)
    keep = checkpointing(save_attention=True)
    want_loss, want = loss_and_gradients(setup_of("qwen2", "layer", keep), row)
    setup = setup_of("qwen2", "layer", keep, setting("checkpoint_offload", kept_layers=1))
    loss, got = loss_and_gradients(setup, row)
    assert loss == want_loss
    assert_same_gradients(got, want, 0.0)
    assert setup.layer_engine.inputs.num_in == setup.layer_engine.outputs.num_in == 2


def test_an_evaluation_keeps_nothing() -> None:
    setup = setup_of("llama", "layer", checkpointing(), setting("checkpoint_offload", kept_layers=1))
    row = random_row(LENGTHS)
    with torch.no_grad():
        without = forward_loss(setup, shard_row(row, setup.mesh, setup.device))
    loss, _ = loss_and_gradients(setup, row)
    assert without == loss
    assert setup.layer_engine.inputs.num_out == 2


def test_a_forward_serves_one_backward() -> None:
    setup = setup_of("llama", "layer", checkpointing())
    loss = forward_loss(setup, shard_row(random_row((5,)), setup.mesh, setup.device))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward"):
        loss.backward()


def test_the_model_is_given_back_as_it_was() -> None:
    setup = setup_of("llama", "layer")
    setup.restore()
    decoder = setup.causal_lm.get_decoder()
    assert all("forward" not in layer.__dict__ for layer in decoder.layers)


def test_evidence_is_refused_where_no_layer_ran() -> None:
    setup = setup_of("llama", "layer")
    with pytest.raises(NotActive, match="0 of 3 layers"):
        setup.layer_engine.evidence()
