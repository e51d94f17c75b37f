"""The layer engine on one CUDA GPU: its Triton kernels, its gradients in bfloat16, and offload on side streams."""

from __future__ import annotations

import pytest
import torch

from core.attention.kernel import ReferenceKernel
from core.layer.row_ops import TorchRowOps
from core.optimizations import REGISTRY
from core.train.build import verify_setup
from tests.core.model.tiny_models import loss_and_gradients, random_row, setting, tiny_model, tiny_setup

pytestmark = [pytest.mark.gpu(1), pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
CUDA = torch.device("cuda")
SHAPE = {
    "heads": 8, "kv_heads": 2, "head_dim": 64, "hidden_size": 512, "intermediate_size": 1408, "layers": 4,
    "max_position_embeddings": 4096,
}  # fmt: skip
ROW = random_row((1000, 3, 1045))
LORA = setting("lora", rank=8, alpha=16, targets="all-linear", dropout=0.0, adapter_dtype="float32")


def checkpointing(**knobs):
    return setting("gradient_checkpointing", **{"save_attention": True, "kept_layers": 0, **knobs})


def triton_ops():
    from core.layer.triton_ops import TritonRowOps

    return TritonRowOps()


def rows(num_rows: int, width: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed)).to(CUDA, dtype)


TOLERANCE = {torch.bfloat16: 1e-2, torch.float32: 1e-5}


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    error = ((got.float() - want.float()).norm() / want.float().norm()).item()
    assert error <= TOLERANCE[got.dtype], error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [64, 96, 3584, 4096])
def test_norms_equal_plain_torch(dtype, width):
    x, dy, total = (rows(37, width, dtype, seed) for seed in (0, 1, 2))
    weight = 1 + 0.1 * rows(1, width, dtype, 3)[0]
    ours, plain = triton_ops(), TorchRowOps()
    assert_close(ours.rms_norm(x, weight, 1e-6), plain.rms_norm(x, weight, 1e-6))
    got, want = total.clone(), total.clone()
    ours.rms_norm_backward_(got, dy, x, weight, 1e-6)
    plain.rms_norm_backward_(want, dy, x, weight, 1e-6)
    assert_close(got, want)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("heads", [4, 7, 28])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_rotation_equals_plain_torch(heads, head_dim, inverse):
    x = rows(33, heads * head_dim, torch.bfloat16, 0).view(33, heads, head_dim)
    angles = rows(33, head_dim // 2, torch.float32, 1)
    cos, sin = (torch.cat((f(angles), f(angles)), -1).bfloat16() for f in (torch.cos, torch.sin))
    got, want = x.clone(), x.clone()
    triton_ops().rotate_(got, cos, sin, inverse=inverse)
    TorchRowOps().rotate_(want, cos, sin, inverse=inverse)
    assert_close(got, want)
    triton_ops().rotate_(got, cos, sin, inverse=not inverse)
    assert_close(got, x)


@pytest.mark.parametrize("adapted", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("rank", [3, 64, 100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_swiglu_equals_plain_torch(dtype, rank, adapted):
    gate, up, dproduct = (rows(131, 1000, dtype, seed) for seed in range(3))
    xa = 0.1 * rows(131, 2 * rank, dtype, 3)
    updates = tuple(
        (xa[:, i * rank : (i + 1) * rank], rows(1000, rank, dtype, 4 + i)) if has else None
        for i, has in enumerate(adapted)
    )
    ours, plain = triton_ops(), TorchRowOps()
    assert_close(ours.swiglu(gate, up, updates), plain.swiglu(gate, up, updates))
    got, want = ([x.clone() for x in (gate, up, dproduct)] for _ in range(2))
    ours.swiglu_backward_(*got[:2], updates, got[2])
    plain.swiglu_backward_(*want[:2], updates, want[2])
    for a, b in zip(got, want):
        assert_close(a, b)


def step(engine, *optimizations, family="qwen2", dtype="bfloat16", row=ROW):
    torch.manual_seed(1)
    model = tiny_model(family, dtype=getattr(torch, dtype), **SHAPE).to(CUDA)
    setup = tiny_setup(
        model, LORA, *optimizations, device=CUDA, dtype=dtype, max_length=2048, engine=engine,
        adapter_dtype=torch.float32, autocast=dtype == "bfloat16",
    )  # fmt: skip
    for name, parameter in setup.model.named_parameters():
        if ".lora_B." in name:
            parameter.data += torch.linspace(-0.1, 0.1, parameter.numel(), device=CUDA).view_as(parameter)
    if dtype == "float32":
        setup.attention.kernel = ReferenceKernel()
    return setup, loss_and_gradients(setup, row)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_are_as_close_to_float32_as_those_of_the_modules(family, groups):
    """The relative error of all gradients together, in bfloat16, is at most 1.5 times that of the stock path."""
    _, (_, exact) = step("module", family=family, dtype="float32")

    def error_of(engine, *optimizations):
        setup, (_, got) = step(engine, checkpointing(), *optimizations, family=family)
        verify_setup(setup, REGISTRY)
        difference = sum((got[name] - exact[name]).square().sum() for name in exact)
        return (difference / sum(exact[name].square().sum() for name in exact)).sqrt().item()

    groups_setting = (setting("fake_parallel", groups=groups),) if groups > 1 else ()
    assert error_of("layer", *groups_setting) <= 1.5 * error_of("module")


@pytest.mark.parametrize("kept_layers", [1, 3])
def test_offload_changes_no_bit(kept_layers, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        _, (want_loss, want) = step("layer", checkpointing())
        setup, (loss, got) = step("layer", checkpointing(), setting("checkpoint_offload", kept_layers=kept_layers))
        again_loss, again = loss_and_gradients(setup, ROW)
    finally:
        torch.use_deterministic_algorithms(False)
    assert loss == want_loss == again_loss
    for name in want:
        assert torch.equal(got[name], want[name]), name
        assert torch.equal(again[name], want[name]), name
