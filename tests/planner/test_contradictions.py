"""Options that exclude each other: refused with arithmetic, and with the smallest change that works."""

from __future__ import annotations

from typing import Any

import pytest

from planner.types import ParallelDegrees
from tests.planner.plans import LEAN_LORA, QWEN_7B, cluster_of, environment_of, plan_of

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "flash-attn", "flash-attn-3", "flash-attn-4")
SCORES = 4 * QWEN_7B.num_attention_heads * 8192**2
# what is asked for, the card, the code of the refusal, what its reason must hold
CASES: list[tuple[str, dict[str, Any], dict[str, Any], str, str, str]] = [
    ("galore with lora", {"galore": {}}, {}, "H200", "galore-adapters", "1.29 GB"),
    ("layer-wise with accumulation", {"lora": None},
     {"update": "layer", "gradient_accumulation_steps": 8, "max_grad_norm": 0.0}, "H200",
     "update-layer-accumulation", "14.19 GiB"),
    ("layer-wise galore with accumulation", {"lora": None, "galore": {}},
     {"update": "layer", "gradient_accumulation_steps": 8, "max_grad_norm": 0.0}, "H200",
     "update-layer-accumulation", "0.43 GiB"),
    ("layer-wise with clipping", {"lora": None}, {"update": "layer"}, "H200", "update-layer-clipping", "14.19 GiB"),
    ("FlashAttention-3 on an A100", {"flash_attention": {"version": "3"}}, {}, "A100-80G", "flash-attention-version",
     "needs compute capability 8.9, this GPU has 8.0"),
    ("FlashAttention-3 on a B200", {"flash_attention": {"version": "3"}}, {}, "B200", "flash-attention-version",
     "is built for compute capabilities 8.9 and 9.0"),
    ("float32 with FlashAttention-2", {"flash_attention": {"version": "2"}}, {"dtype": "float32"}, "H200",
     "flash-attention-version", "dtype is float32"),
    ("float32 and long rows", {}, {"dtype": "float32"}, "H200", "no-flash-attention", str(SCORES)),
    ("bfloat16 on a T4", {}, {"max_length": 2048}, "T4", "dtype-bfloat16", "8.0"),
    ("offload without checkpointing", {"gradient_checkpointing": None, "checkpoint_offload": {}}, {}, "H200",
     "offload-without-checkpointing", "keeps"),
    ("4-bit base and head groups", {"lora": None, "qlora": {}, "fake_parallel": {"groups": 2}}, {}, "H200",
     "qlora-fake-parallel", "4-bit"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("optimizations", "values", "gpu", "code", "reason"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_contradiction_is_told_and_its_suggestion_ends_it(
    optimizations: dict[str, Any], values: dict[str, Any], gpu: str, code: str, reason: str
) -> None:
    chosen = {name: knobs for name, knobs in {**LEAN_LORA, **optimizations}.items() if knobs is not None}
    values = {"parallel": ParallelDegrees(), "cluster": cluster_of(gpu), **values}
    values["environment"] = environment_of(values["cluster"], PACKAGES)
    plan = plan_of(chosen, **values)
    issue = next(issue for issue in plan.issues if issue.code == code)
    assert issue.severity == "error"
    assert reason in f"{issue.what} {issue.why}"
    assert issue.fix
    for key, value in issue.suggestion:
        if key in chosen or key in LEAN_LORA or key in ("gradient_checkpointing", "flash_attention"):
            chosen = {name: knobs for name, knobs in chosen.items() if name != key}
            if value is not None:
                main = {"flash_attention": "version"}.get(key)
                chosen[key] = {} if value is True or main is None else {main: value}
        else:
            values[key] = value
    if issue.suggestion:
        assert code not in {later.code for later in plan_of(chosen, **values).issues}
