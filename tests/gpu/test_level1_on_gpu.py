"""Level 1 on one CUDA GPU: kept attention, offload on a side stream, NF4, Liger, and a rehearsal under a limit."""

from __future__ import annotations

import json

import pytest
import torch

from core.optimizations import REGISTRY
from core.train.build import verify_setup
from tests.core.model.tiny_models import loss_and_gradients, random_row, setting, tiny_model, tiny_setup

pytestmark = [pytest.mark.gpu(1), pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
CUDA = torch.device("cuda")
SHAPE = {
    "heads": 8, "kv_heads": 2, "head_dim": 64, "hidden_size": 512, "intermediate_size": 1024, "layers": 4,
    "max_position_embeddings": 4096,
}  # fmt: skip
ROW = random_row((1000, 3, 1045))
CHECKPOINTING = setting("gradient_checkpointing")
LORA = setting("lora", rank=8, adapter_dtype="bfloat16")


def step(*optimizations, rows=(ROW,), family="qwen2", **overrides):
    torch.manual_seed(1)
    model = tiny_model(family, dtype=torch.bfloat16, **SHAPE).to(CUDA)
    setup = tiny_setup(model, *optimizations, device=CUDA, dtype="bfloat16", max_length=2048, **overrides)
    return setup, [loss_and_gradients(setup, row) for row in rows]


COMBINATIONS = {
    "full": (),
    "lora": (LORA,),
    "lora with dropout": (setting("lora", rank=8, adapter_dtype="bfloat16", dropout=0.2),),
    "head groups": (setting("fake_parallel", groups=2), setting("fused_loss")),
}


@pytest.mark.parametrize("combination", COMBINATIONS.values(), ids=COMBINATIONS)
@pytest.mark.parametrize(
    "extra",
    [
        (setting("gradient_checkpointing", save_attention=True),),
        (CHECKPOINTING, setting("checkpoint_offload", kept_layers=1)),
        (setting("gradient_checkpointing", save_attention=True), setting("checkpoint_offload", kept_layers=2)),
    ],
    ids=["kept attention", "offload", "both"],
)
def test_kept_and_offloaded_runs_are_bit_for_bit_plain_checkpointing(deterministic, combination, extra):
    rows = (ROW, random_row((900, 700)), ROW)
    _, want = step(*combination, CHECKPOINTING, rows=rows)
    setup, got = step(*combination, *extra, rows=rows)
    for (loss, gradients), (want_loss, want_gradients) in zip(got, want):
        assert torch.equal(loss, want_loss)
        for name, gradient in want_gradients.items():
            assert torch.equal(gradients[name], gradient), name
    assert len(verify_setup(setup, REGISTRY)) == len(combination) + len(extra)


def test_offloaded_inputs_leave_the_gpu():
    """16 layers of one 4 MiB input each: all but the kept one are gone when the forward ends."""
    from core.parallel.layout import shard_row
    from core.train.forward import forward_loss

    def held(*optimizations):
        model = tiny_model(dtype=torch.bfloat16, **{**SHAPE, "layers": 16}).to(CUDA)
        setup = tiny_setup(model, LORA, *optimizations, device=CUDA, dtype="bfloat16", max_length=4096)
        row = random_row((4096,))
        forward_loss(setup, shard_row(row, setup.mesh, CUDA)).backward()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        loss = forward_loss(setup, shard_row(row, setup.mesh, CUDA))
        torch.cuda.synchronize()
        after = torch.cuda.memory_allocated()
        loss.backward()
        return after - before

    one_input = 4096 * 512 * 2
    saved = held(CHECKPOINTING) - held(CHECKPOINTING, setting("checkpoint_offload"))
    assert saved == pytest.approx(15 * one_input, abs=one_input)


def test_qlora_gradients_are_those_of_the_dequantised_base():
    pytest.importorskip("bitsandbytes")
    from core.model.nf4 import dequantised, quantised_linears

    qlora, [(loss, got)] = step(setting("qlora", rank=8, adapter_dtype="bfloat16"), CHECKPOINTING)
    model = tiny_model("qwen2", dtype=torch.bfloat16, **SHAPE).to(CUDA)
    linears = [m for m in model.get_decoder().layers.modules() if type(m) is torch.nn.Linear]
    for linear, quantised in zip(linears, quantised_linears(qlora.causal_lm)):
        linear.weight.data = dequantised(quantised)
    lora = tiny_setup(model.requires_grad_(False), LORA, CHECKPOINTING, device=CUDA, dtype="bfloat16", max_length=2048)
    want_loss, want = loss_and_gradients(lora, ROW)
    assert abs(loss - want_loss) < 1e-3 * want_loss
    for name, gradient in want.items():
        if gradient.any():
            assert (got[name] - gradient).norm() < 2e-2 * gradient.norm(), name
    assert any("28 decoder linears are NF4" in evidence.claim for evidence in verify_setup(qlora, REGISTRY))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("head_groups", [(), (setting("fake_parallel", groups=2),)], ids=["", "fake_parallel"])
def test_liger_is_as_near_to_float32_as_transformers_own(family, head_groups):
    pytest.importorskip("liger_kernel")
    exact_model = tiny_model(family, dtype=torch.float64, **SHAPE)
    exact_loss, exact = loss_and_gradients(tiny_setup(exact_model), ROW)
    _, [(stock_loss, stock)] = step(CHECKPOINTING, *head_groups, family=family)
    setup, [(loss, got)] = step(CHECKPOINTING, setting("liger"), *head_groups, family=family)

    def distance(gradients):
        return sum((gradients[name].cpu().double() - exact[name]).norm() ** 2 for name in exact) ** 0.5

    assert abs(loss.cpu() - exact_loss) <= 2 * abs(stock_loss.cpu() - exact_loss) + 1e-3 * exact_loss
    assert distance(got) <= 1.5 * distance(stock)
    claims = [evidence.claim for evidence in verify_setup(setup, REGISTRY)]
    assert any("SwiGLU of 4 modules, RoPE of 4 modules" in claim for claim in claims)
    setup.restore()


@pytest.mark.parametrize(("limit", "runs"), [(8 * 10**9, True), (2 * 10**9, False)])
def test_a_rehearsal_under_a_limit_runs_or_ends_in_out_of_memory(tmp_path, monkeypatch, limit, runs):
    from app.services.rehearse import rehearse_preset
    from planner.types import Preset

    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 2816,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
        "max_position_embeddings": 16384, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    preset = Preset(
        name="tiny", description="", hardware={},
        values={"model": str(tmp_path), "max_length": 8192, "data": {"train": ["none"]},
                "lora": {"rank": 16, "adapter_dtype": "bfloat16"}, "gradient_checkpointing": True},
    )  # fmt: skip
    rehearsal = rehearse_preset(preset, limit_bytes=limit)
    if runs:
        assert rehearsal.failure is None
        assert abs(rehearsal.allocated_error) < 0.03
    else:
        assert rehearsal.is_out_of_memory
        assert rehearsal.failure["instant"] in ("forward", "backward")
