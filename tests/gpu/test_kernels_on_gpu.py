"""The CUDA kernels and the engine on a GPU, in what they are used for: bf16 and fp16, grouped heads, packed rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from core.attention.choose import BUILDERS, Problem, choose_kernel, installed_packages
from core.attention.kernel import ReferenceKernel
from core.attention.segments import backward_segments, forward_segments
from core.attention.torch_kernels import TorchFlashKernel
from core.attention.windows import WindowedSegments
from planner.attention_kernels import candidates
from tests.core.model.tiny_models import (
    loss_and_gradients,
    plain_loss_and_gradients,
    random_row,
    setting,
    tiny_model,
    tiny_setup,
)

pytestmark = [pytest.mark.gpu(1), pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
CUDA = torch.device("cuda")
WINDOW = 256


def available(dtype, head_dim):
    """Every kernel that this device should be able to use."""
    capability = torch.cuda.get_device_capability()
    found = candidates(
        capability=capability, dtype=str(dtype).removeprefix("torch."), head_dim=head_dim,
        packages=installed_packages(), version="auto",
    )  # fmt: skip
    return [BUILDERS[name]() for name in found.names]


def run_segments(kernel, q, k, v, dout, cu_seqlens):
    out, lse = forward_segments(kernel, q, k, v, cu_seqlens, 0.1)
    return [out, lse, *backward_segments(kernel, dout, q, k, v, out, lse, cu_seqlens, 0.1)]


def run_windows(kernel, q, k, v, dout, cu_seqlens):
    windowed = WindowedSegments()
    out, lse = windowed.forward(kernel, q, k, v, cu_seqlens, 0.1, WINDOW)
    return [out, lse, *windowed.backward(kernel, dout, q, k, v, out, lse, cu_seqlens, 0.1, WINDOW)]


def distances(kernel, inputs, cu_seqlens, run=run_segments):
    """Relative norms of the errors of out, lse, dq, dk, dv against float32."""
    got = run(kernel, *inputs, cu_seqlens)
    want = run(ReferenceKernel(), *(x.float() for x in inputs), cu_seqlens)
    assert [x.shape for x in got] == [x.shape for x in want]
    return [((ours.float() - exact).norm() / exact.norm()).item() for ours, exact in zip(got, want)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(28, 4, 128), (9, 3, 64), (8, 1, 96), (4, 2, 256)])
@pytest.mark.parametrize("cu_seqlens", [(0, 1280), (0, 3, 1000, 1280)], ids=["dense", "packed"])
def test_every_kernel_is_as_near_to_float32_as_torchs_flash(dtype, heads, kv_heads, head_dim, cu_seqlens):
    generator = torch.Generator(CUDA).manual_seed(0)
    inputs = [
        torch.randn(1, 1280, n, head_dim, device=CUDA, generator=generator).to(dtype).transpose(1, 2)
        for n in (heads, kv_heads, kv_heads, heads)
    ]
    flash = distances(TorchFlashKernel(), inputs, cu_seqlens)
    assert max(flash) < 4 * torch.finfo(dtype).eps
    for kernel in available(dtype, head_dim):
        for error, of_flash in zip(distances(kernel, inputs, cu_seqlens), flash):
            assert error <= 2 * of_flash + 1e-6, kernel.name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (4, 1, 256)])
@pytest.mark.parametrize("cu_seqlens", [(0, 1280), (0, 3, 1000, 1280)], ids=["dense", "packed"])
def test_windows_of_every_kernel_are_as_near_to_float32_as_torchs_flash(dtype, heads, kv_heads, head_dim, cu_seqlens):
    generator = torch.Generator(CUDA).manual_seed(0)
    inputs = [
        torch.randn(1, 1280, n, head_dim, device=CUDA, generator=generator).to(dtype).transpose(1, 2)
        for n in (heads, kv_heads, kv_heads, heads)
    ]
    flash = distances(TorchFlashKernel(), inputs, cu_seqlens)  # without a window
    for kernel in available(dtype, head_dim):
        for error, of_flash in zip(distances(kernel, inputs, cu_seqlens, run_windows), flash):
            assert error <= 2 * of_flash + 1e-6, kernel.name


def test_the_choice_on_this_gpu_is_proven_and_told(caplog):
    events = []
    problem = Problem(
        device=CUDA, dtype=torch.bfloat16, num_heads=28, num_kv_heads=4, head_dim=128, uses_segments=True,
        uses_blocks=True, uses_window=True,
    )  # fmt: skip
    with caplog.at_level("INFO"):
        kernel = choose_kernel(problem, version="auto", emit=lambda kind, data: events.append((kind, data)))
    assert kernel.key != "reference"
    assert f"attention: {kernel.name}, sm" in caplog.text
    assert next(data["claim"] for kind, data in events if kind == "evidence").startswith(kernel.name)


def test_blocks_with_the_rows_statistics_add_up_on_the_gpu():
    """What a ring does: a sub-range of keys, backward with the merged out and log-sum-exp of the row."""
    reference = ReferenceKernel()
    generator = torch.Generator(CUDA).manual_seed(0)
    q, k, v, dout = (torch.randn(1, n, 300, 64, device=CUDA, generator=generator).bfloat16() for n in (6, 2, 2, 6))
    out, lse = reference.forward(q, k, v, causal=False, scale=0.1)
    exact = reference.backward(*(x.float() for x in (dout, q, k, v, out)), lse, causal=False, scale=0.1)
    for kernel in available(torch.bfloat16, 64):
        parts = [
            kernel.backward(dout, q, k[:, :, keys], v[:, :, keys], out, lse, causal=False, scale=0.1)
            for keys in (slice(0, 133), slice(133, 300))
        ]
        dk, dv = (torch.cat([part[n] for part in parts], 2) for n in (1, 2))
        for ours, want in zip((parts[0][0].float() + parts[1][0], dk, dv), exact):
            assert ((ours.float() - want).norm() / want.norm()).item() < 4 * torch.finfo(torch.bfloat16).eps


COMBINATIONS = {
    "plain": (),
    "everything": (
        setting("packing"),
        setting("gradient_checkpointing"),
        setting("fused_loss", chunk_tokens=50),
        setting("fake_parallel", groups=2),
    ),
}


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_bfloat16_engine_is_as_near_to_float32_as_transformers_own(combination, deterministic, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it before a deterministic product
    shape = {"heads": 8, "kv_heads": 2, "head_dim": 16, "layers": 2}
    row = random_row((150, 3, 80), first_target=5)
    exact_loss, exact = plain_loss_and_gradients(tiny_model("qwen3", attention="sdpa", **shape), row)
    on_gpu = replace(row, input_ids=row.input_ids.to(CUDA), labels=row.labels.to(CUDA))
    stock_loss, stock = plain_loss_and_gradients(
        tiny_model("qwen3", attention="sdpa", dtype=torch.bfloat16, **shape).to(CUDA), on_gpu
    )
    torch.use_deterministic_algorithms(deterministic)
    try:
        model = tiny_model("qwen3", dtype=torch.bfloat16, **shape).to(CUDA)
        setup = tiny_setup(model, *COMBINATIONS[combination], device=CUDA, dtype="bfloat16")
        loss, got = loss_and_gradients(setup, row)
        if deterministic:
            again = loss_and_gradients(setup, row)
            assert torch.equal(again[0], loss)
            assert all(torch.equal(again[1][name], gradient) for name, gradient in got.items())
    finally:
        torch.use_deterministic_algorithms(False)

    def distance(gradients):
        return sum((gradients[name].cpu().double() - exact[name]).norm() ** 2 for name in exact) ** 0.5

    size = sum(gradient.norm() ** 2 for gradient in exact.values()) ** 0.5
    assert abs(loss.cpu() - exact_loss) <= 2 * abs(stock_loss - exact_loss) + 1e-3 * exact_loss
    assert distance(got) <= 1.5 * distance(stock) + 1e-3 * size


def test_float32_on_a_gpu_goes_the_reference_way():
    row = random_row((33, 20))
    shape = {"dtype": torch.float32}
    want_loss, want = loss_and_gradients(tiny_setup(tiny_model(**shape)), row)
    setup = tiny_setup(tiny_model(**shape).to(CUDA), device=CUDA)
    assert setup.attention.kernel.name == "torch reference"
    loss, got = loss_and_gradients(setup, row)
    assert abs(loss.cpu() - want_loss) < 1e-4 * want_loss
    for name, gradient in want.items():
        assert ((got[name].cpu() - gradient).norm() / gradient.norm()).item() < 1e-3, name


def test_adapters_on_a_sixteen_bit_base_with_and_without_autocast():
    row = random_row((90, 41))
    shape = {"heads": 8, "kv_heads": 2, "head_dim": 16, "dtype": torch.bfloat16}
    losses = []
    for autocast in (False, True):
        for extra in ((), (setting("fake_parallel", groups=2),)):
            setup = tiny_setup(
                tiny_model(**shape).to(CUDA), setting("lora", rank=4), setting("fused_loss"), *extra,
                device=CUDA, adapter_dtype=torch.float32, dtype="bfloat16", autocast=autocast,
            )  # fmt: skip
            loss, got = loss_and_gradients(setup, row)
            losses.append(loss)
            assert {gradient.dtype for gradient in got.values()} == {torch.float32}
            assert all(torch.isfinite(gradient).all() for gradient in got.values())
    assert max(losses) - min(losses) < 5e-3 * min(losses)
