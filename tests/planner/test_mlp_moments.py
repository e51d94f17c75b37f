"""The fullest moment of an MLP under Liger, against the tensors that torch makes with what Liger's kernels allocate."""

from __future__ import annotations

from typing import Any

import pytest

from core.optimizations import REGISTRY
from core.verify.cuda_entries import DryLiger
from planner.parts.mlp_moments import MlpPath, fullest_moment
from tests.planner import test_against_engine as engine
from tests.planner.engine_bytes import step_peaks
from tests.planner.plans import account_of, run_config

POLICIES = ("nothing", "fused loss", "both")


def assert_backward_is_close(optimizations: dict[str, Any], autocast: bool, tolerance: float = 0.015) -> None:
    values: dict[str, Any] = {
        "optimizations": {**optimizations, "liger": {}}, "autocast": autocast, "max_length": engine.TOKENS,
    }  # fmt: skip
    measured = step_peaks(engine.SHAPES["qwen2"], run_config(**values), as_cuda=True)
    planned = engine.planned_peaks("qwen2", True, **values)
    assert planned["backward"] == pytest.approx(measured["backward"], rel=tolerance)


@pytest.fixture(autouse=True)
def liger_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "liger", DryLiger)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", engine.METHODS)
def test_every_method_and_policy(method: str, policy: str) -> None:
    optimizations, autocast = engine.METHODS[method]
    assert_backward_is_close({**optimizations, **engine.POLICIES[policy]}, autocast)


@pytest.mark.parametrize("targets", ["q_proj,v_proj", "down_proj", "gate_proj,up_proj", "gate_proj"])
@pytest.mark.parametrize("method", [name for name in engine.METHODS if name != "full"])
def test_adapters_on_some_linears(method: str, targets: str) -> None:
    optimizations, autocast = engine.METHODS[method]
    lora = {**optimizations["lora"], "targets": targets}
    assert_backward_is_close({"lora": lora, **engine.POLICIES["both"]}, autocast, tolerance=0.03)


def test_the_moment_is_named() -> None:
    s = account_of().ctx.sizes
    path = {"adapted": ("gate_proj", "up_proj", "down_proj"), "fuses_swiglu": True, "fuses_norm": True}
    half = MlpPath(casts=False, autocast=False, **path)
    wide = MlpPath(casts=True, autocast=False, **path)
    cast = MlpPath(casts=True, autocast=True, **path)
    assert fullest_moment(s, half, recomputed=True).bytes == 6 * s.f + 2 * s.d
    assert "their sum" in fullest_moment(s, half, recomputed=True).what
    assert fullest_moment(s, wide, recomputed=True).bytes == 8 * s.f + 10 * s.d
    assert "up recomputed" in fullest_moment(s, wide, recomputed=True).what
    assert fullest_moment(s, cast, recomputed=True).bytes == 8 * s.f + 8 * s.d
    assert "down recomputed" in fullest_moment(s, cast, recomputed=True).what
