"""Runs that were measured against the planner. Written by benchmarks/planner_validated.py; do not edit."""

from __future__ import annotations

from planner.validated import Facts

VALIDATED: tuple[Facts, ...] = (
    Facts(family="llama", method="lora", tokens_per_rank=65536, world=1,
          features=frozenset({"fused_loss", "gradient_checkpointing"})),
    Facts(family="qwen2", method="full", tokens_per_rank=16384, world=1,
          features=frozenset({"fused_loss", "gradient_checkpointing"})),
    Facts(family="qwen2", method="full", tokens_per_rank=8192, world=1,
          features=frozenset({"gradient_checkpointing"})),
    Facts(family="qwen2", method="lora", tokens_per_rank=32768, world=1,
          features=frozenset({"fake_parallel", "fused_loss", "gradient_checkpointing"})),
    Facts(family="qwen2", method="lora", tokens_per_rank=8192, world=1,
          features=frozenset({"fused_loss"})),
    Facts(family="qwen2", method="lora", tokens_per_rank=8192, world=1,
          features=frozenset({"fused_loss", "gradient_checkpointing"})),
    Facts(family="qwen2", method="lora", tokens_per_rank=32768, world=1,
          features=frozenset({"fused_loss", "gradient_checkpointing"})),
    Facts(family="qwen2", method="lora", tokens_per_rank=65536, world=1,
          features=frozenset({"fused_loss", "gradient_checkpointing"})),
    Facts(family="qwen2", method="lora", tokens_per_rank=8192, world=1,
          features=frozenset({"gradient_checkpointing"})),
    Facts(family="qwen2", method="lora", tokens_per_rank=16384, world=1,
          features=frozenset({"gradient_checkpointing"})),
    Facts(family="qwen2", method="lora", tokens_per_rank=32768, world=1,
          features=frozenset({"gradient_checkpointing"})),
)  # fmt: skip
