"""The start-up probe: what passes is taken, the fastest of it; what does not is told, or stops the run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from core.attention import choose
from core.attention.choose import Problem, choose_kernel, largest_error
from core.attention.kernel import CpuFlashKernel, ReferenceKernel
from core.optimizations.evidence import NotActive
from tests.core.model.tiny_models import random_row, setting, tiny_model, tiny_setup

CPU = Problem(
    device=torch.device("cpu"), dtype=torch.float32, num_heads=6, num_kv_heads=2, head_dim=8, uses_segments=True,
    uses_blocks=True,
)  # fmt: skip


class Wrong(CpuFlashKernel):
    """A kernel that is right in the forward and wrong in one gradient."""

    name = "wrong"

    def backward(self, dout, q, k, v, out, lse, *, causal, scale):
        dq, dk, dv = super().backward(dout, q, k, v, out, lse, causal=causal, scale=scale)
        return dq, dk * 1.01, dv


class NaN(CpuFlashKernel):
    name = "nan"

    def forward(self, q, k, v, *, causal, scale):
        out, lse = super().forward(q, k, v, causal=causal, scale=scale)
        return out * float("nan"), lse


def choose_on_cpu(**builders):
    events = []
    kernel = choose_kernel(
        CPU, version="auto", emit=lambda kind, data: events.append((kind, data)),
        builders={**choose.BUILDERS, **builders}, packages={},
    )  # fmt: skip
    return kernel, events


def test_the_cpu_takes_its_own_kernel_and_says_so(caplog):
    with caplog.at_level("INFO"):
        kernel, [(kind, data)] = choose_on_cpu()
    assert kernel.key == "cpu"
    assert (kind, data["optimization"]) == ("evidence", "attention")
    assert "attention: torch CPU flash, cpu, segment by segment" in caplog.text


@pytest.mark.parametrize("kernel", [Wrong, NaN])
def test_a_kernel_with_wrong_numbers_is_told_and_replaced(kernel):
    chosen, events = choose_on_cpu(cpu=kernel)
    assert chosen.key == "reference"
    [fallback] = [data for kind, data in events if kind == "fallback"]
    assert "is wrong on this device" in fallback["reason"]
    assert "torch reference is used" in fallback["reason"]


def test_a_kernel_that_cannot_be_built_is_told_with_its_own_words():
    def broken():
        raise ImportError("libcute.so: undefined symbol")

    _, events = choose_on_cpu(cpu=broken)
    assert "ImportError: libcute.so: undefined symbol" in events[0][1]["reason"]


def test_a_version_asked_for_by_number_is_never_replaced():
    with pytest.raises(NotActive, match=r"version 4 is not possible here.*runs on NVIDIA GPUs, this is a CPU"):
        choose_kernel(CPU, version="4", emit=lambda *_: None)


def test_errors_are_of_every_kind_of_call_that_the_run_makes():
    class WrongBlocks(CpuFlashKernel):
        def forward(self, q, k, v, *, causal, scale):
            out, lse = super().forward(q, k, v, causal=causal, scale=scale)
            return (out if causal else out * 2), lse

    assert largest_error(WrongBlocks(), replace(CPU, uses_blocks=False)) < 1e-5
    with pytest.raises(NotActive, match="wrong on this device"):
        largest_error(WrongBlocks(), CPU)


def test_windows_are_tried_where_layers_slide():
    class WrongChunks(CpuFlashKernel):
        def forward(self, q, k, v, *, causal, scale):
            out, lse = super().forward(q, k, v, causal=causal, scale=scale)
            return (out * 2 if q.shape[2] == choose._PROBE_WINDOW - 1 else out), lse

    assert largest_error(WrongChunks(), CPU) < 1e-5
    assert largest_error(CpuFlashKernel(), replace(CPU, uses_window=True)) < 1e-5
    with pytest.raises(NotActive, match="wrong on this device"):
        largest_error(WrongChunks(), replace(CPU, uses_window=True))


@pytest.mark.parametrize(("seconds", "fastest"), [((1.0, 0.97), "cpu"), ((1.0, 0.9), "reference")])
def test_the_fastest_wins_and_noise_decides_nothing(monkeypatch, seconds, fastest):
    times = iter(seconds)
    monkeypatch.setattr(choose, "_seconds", lambda *_: next(times))
    passed = {"cpu": (CpuFlashKernel(), 0.0), "reference": (ReferenceKernel(), 0.0)}
    assert choose._fastest(passed, CPU) == fastest


def test_ranks_take_the_choice_of_rank_0():
    kernel = choose_kernel(CPU, version="auto", emit=lambda *_: None, agree=lambda name: name)
    assert kernel.key == "cpu"
    with pytest.raises(NotActive, match="rank 0 chose cuDNN attention, which this rank cannot use: not tried"):
        choose_kernel(CPU, version="auto", emit=lambda *_: None, agree=lambda _: "cudnn")


def test_a_run_that_names_a_version_proves_it():
    from core.optimizations import REGISTRY
    from core.train.build import verify_setup
    from tests.core.model.tiny_models import loss_and_gradients

    setup = tiny_setup(tiny_model(), setting("flash_attention", version="auto"))
    loss_and_gradients(setup, random_row((9, 4)))
    [evidence] = verify_setup(setup, REGISTRY)
    assert evidence.claim.startswith("torch CPU flash computed 2 attention calls")
