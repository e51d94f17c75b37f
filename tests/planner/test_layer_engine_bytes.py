"""The layer engine's terms against what it allocates, counted on a CPU as a GPU would allocate, above static bytes."""

from __future__ import annotations

from typing import Any

import pytest

from core.verify.flash_allocations import FlashAllocations
from planner.layer_policy import layer_policies
from planner.model_spec import model_spec_from_config
from planner.parts.layer_engine import kernel_of
from planner.types import Instant
from tests.planner.engine_bytes import step_peaks
from tests.planner.plans import account_of, cluster_of, run_config

TOKENS = 2048
SHAPES: dict[str, dict[str, Any]] = {
    "wide MLP": {
        "model_type": "qwen2", "hidden_size": 128, "intermediate_size": 640, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500, "tie_word_embeddings": False,
    },
    "wide attention": {
        "model_type": "llama", "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 4, "head_dim": 64,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 500, "tie_word_embeddings": True,
    },
    "normed heads": {
        "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 4, "head_dim": 64,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 500, "tie_word_embeddings": True,
    },
    "windows": {
        "model_type": "mistral", "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 4, "head_dim": 64,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 500, "tie_word_embeddings": True,
        "sliding_window": 256,
    },
}  # fmt: skip
KEEP = {"gradient_checkpointing": {"save_attention": True}}
POLICIES: dict[str, dict[str, Any]] = {
    "recompute all": {"gradient_checkpointing": {}},
    "keep attention": KEEP,
    "keep one layer whole": {"gradient_checkpointing": {"save_attention": True, "kept_layers": 1}},
    "keep everything": {},
    "offload": {**KEEP, "checkpoint_offload": {"kept_layers": 1}},
    "offload the first": {**KEEP, "checkpoint_offload": {"kept_layers": 3}},
    "offload inputs": {"gradient_checkpointing": {}, "checkpoint_offload": {"kept_layers": 1}},
    "two groups": {**KEEP, "fake_parallel": {"groups": 2}},
    "two groups, packed": {**KEEP, "fake_parallel": {"groups": 2}, "packing": {}},  # torch's flash kernel, which copies
}
INSTANTS_OF: dict[str, tuple[Instant, ...]] = {
    "forward": ("layer_forward", "forward_loss"),
    "backward": ("loss_backward", "layer_backward", "attention_backward", "backward_end"),
    "evaluation": ("evaluation_forward", "evaluation"),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_of_a_step(shape: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.layer_policy.TILE_TOKENS", TOKENS // 2)
    values: dict[str, Any] = {
        "optimizations": {"lora": {"rank": 8}, "fused_loss": {"chunk_tokens": 64}, **POLICIES[policy]},
        "autocast": True, "max_length": TOKENS, "engine": "layer",
    }  # fmt: skip
    account = account_of(model=model_spec_from_config("tiny", SHAPES[shape]), cluster=cluster_of(), **values)
    combined, kernel = account.combined, FlashAllocations(kernel_of(account.ctx))
    measured = step_peaks(SHAPES[shape], run_config(**values), as_cuda=True, kernel=kernel)
    static = sum(
        spec.bytes for spec in combined.specs
        if spec.key.startswith(("weights", "optimizer")) or spec.part == "runtime"
    )  # fmt: skip
    by_instant = combined.bytes_by_instant()
    planned = {phase: max(by_instant[i] for i in instants) - static for phase, instants in INSTANTS_OF.items()}
    assert not combined.issues
    for phase, tolerance in {"forward": 0.05, "backward": 0.02, "evaluation": 0.06}.items():
        assert planned[phase] == pytest.approx(measured[phase], rel=tolerance), (phase, planned, measured)


@pytest.mark.parametrize(("kept", "offloaded", "whole"), [(0, 3, 0), (2, 1, 2), (9, 0, 4)])
def test_policies_of_the_layers_in_their_order(kept: int, offloaded: int, whole: int) -> None:
    chosen = {"lora": {}, "gradient_checkpointing": {"kept_layers": kept}, "checkpoint_offload": {"kept_layers": 1}}
    model = model_spec_from_config("tiny", SHAPES["wide MLP"])
    policies = layer_policies(run_config(chosen, engine="layer"), model)
    assert [policy.offloads for policy in policies] == [layer < offloaded for layer in range(4)]
    assert [policy.keeps_products for policy in policies] == [layer >= 4 - whole for layer in range(4)]
    assert [policy.keeps_attention for policy in policies] == [policy.keeps_products for policy in policies]
