"""The table of attention kernels: what is tried on which GPU, and what a version asked for by number is refused for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.attention_kernels import candidates, cudnn_takes
from tests.planner.plans import LEAN_LORA, cluster_of, environment_of, plan_of

CASES = json.loads((Path(__file__).parents[1] / "data" / "k09_gpu_matrix.json").read_text("utf-8"))["rows"]
VERSIONS = {"flash2": "2", "flash3": "3", "auto": "auto"}


def packages_of(case):
    """An importable flash_attn is package 2; flash_attn_interface is package 3."""
    found = {"flash-attn": "2.8.3"} if case.get("fa2") else {}
    return {**found, "flash-attn-3": "3.0.0"} if case.get("fa3") else found


def of(case):
    return candidates(
        capability=None if case["cc"] is None else tuple(case["cc"]), dtype=case["dtype"], head_dim=128,
        packages=packages_of(case), version=VERSIONS[case["ask"]],
    )  # fmt: skip


EXPECTED = [  # names tried, a fact of the reason; in the order of the file
    ((), "needs compute capability 8.0, this GPU has 7.5"),
    (("reference",), "needs compute capability 8.0"),
    (("reference",), "needs compute capability 8.0"),
    ((), 'pip install --no-build-isolation "longfit[flash]"'),
    ((), "flash_attn_interface) is not installed; the package flash-attn is FlashAttention-2"),
    (("flash3",), ""),
    (("flash3",), ""),
    (("flash2",), ""),
    ((), "takes bfloat16 and float16 only, dtype is float32"),
    (("cpu",), ""),
]


@pytest.mark.parametrize(
    ("case", "expected"), list(zip(CASES, EXPECTED)), ids=[f"{c['gpu']}-{c['ask']}" for c in CASES]
)
def test_the_matrix_of_gpus_and_wishes(case, expected):
    names, reason = expected
    found = of(case)
    assert found.names == names
    assert any(reason in text for text in found.out.values()) or not reason


def test_hopper_tries_the_fastest_first_and_says_what_is_missing():
    found = candidates(capability=(9, 0), dtype="bfloat16", head_dim=128, packages={}, version="auto")
    assert found.names == ("cudnn", "torch")
    assert "flash-attn-4" in found.out["flash4"]
    assert 'pip install "longfit[flash4]"' in found.out["flash4"]


def test_deterministic_runs_do_without_cudnn():
    found = candidates(
        capability=(9, 0), dtype="bfloat16", head_dim=128, packages={}, version="sdpa", deterministic=True
    )
    assert found.names == ("torch",)
    assert "not deterministic" in found.out["cudnn"]


WISH = {**LEAN_LORA, "flash_attention": {}}


def issues(version, gpu="A10", packages=()):
    cluster = cluster_of(gpu)
    plan = plan_of(
        {**LEAN_LORA, "flash_attention": {"version": version}}, cluster=cluster,
        environment=environment_of(cluster, packages, source="detected"),
    )  # fmt: skip
    return [issue for issue in plan.issues if issue.code.startswith("flash-attention")]


def test_a_version_that_cannot_be_is_refused_in_the_plan_with_the_way_out():
    [issue] = issues("2", packages=("peft",))
    assert issue.severity == "error"
    assert "flash-attn is not installed" in issue.why
    assert issue.suggestion == (("flash_attention", "auto"),)


def test_a_version_that_may_be_is_left_to_the_probe():
    [issue] = issues("3", gpu="RTX-4090", packages=("flash-attn-3",))
    assert issue.severity == "info"
    assert "FlashAttention-3 is proven by a small forward and backward" in issue.what


@pytest.mark.parametrize("version", ["auto", "sdpa"])
def test_wishes_without_a_number_are_never_refused(version):
    assert issues(version) == []


def test_attention_on_hopper_takes_the_time_of_the_kernel_that_is_there():
    def seconds(optimizations, packages):
        cluster = cluster_of("H200")
        environment = environment_of(cluster, packages, source="detected")
        return plan_of(optimizations, cluster=cluster, environment=environment, max_length=131072).seconds_per_step

    with_4, without = seconds(WISH, ("peft", "flash-attn-4")), seconds(WISH, ("peft",))
    assert with_4 < without
    assert without == seconds(LEAN_LORA, ("peft",))  # every run chooses a kernel, asked for or not


def test_a_long_row_is_worth_a_graph_of_cudnn_and_a_short_one_of_odd_length_is_not():
    assert [cudnn_takes(tokens) for tokens in (8192, 8191, 32767, 32769, 200_000)] == [True, False, False, True, True]
