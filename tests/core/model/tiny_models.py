"""Tiny models of the families, rows of random samples, and the plain way to their loss and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from core.attention.register import register_attention
from core.data.row import IGNORE_INDEX, Row
from core.optimizations import REGISTRY
from core.parallel.layout import shard_row
from core.parallel.mesh import Mesh
from core.train.build import build_setup
from core.train.forward import forward_loss
from core.train.setup import TrainingSetup
from planner.model_spec import model_spec_from_config
from planner.types import DataConfig, OptimizationSetting, ParallelDegrees, RunConfig

FAMILIES: dict[str, tuple[type, type]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
}
MODULE_FAMILIES: dict[str, tuple[type, type]] = {  # by modules only: no head groups, no Liger, no layer engine
    "gemma": (GemmaConfig, GemmaForCausalLM),
    "gemma3_text": (Gemma3TextConfig, Gemma3ForCausalLM),
    "glm": (GlmConfig, GlmForCausalLM),
    "glm4": (Glm4Config, Glm4ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM),
}
EXPERT_FAMILIES: dict[str, tuple[type, type]] = {  # products by experts: widths of whole 16 bytes, no float64
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "qwen2_moe": (Qwen2MoeConfig, Qwen2MoeForCausalLM),
}
VOCABULARY = 97
CPU = torch.device("cpu")


def tiny_model(
    family: str = "llama",
    *,
    attention: str = "longfit",
    heads: int = 9,
    kv_heads: int = 3,
    head_dim: int = 6,
    layers: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    **overrides: Any,
) -> PreTrainedModel:
    """A model with random weights that are large enough to matter, the same for the same arguments."""
    register_attention()
    config_class, model_class = {**FAMILIES, **MODULE_FAMILIES, **EXPERT_FAMILIES}[family]
    config = config_class(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": heads * 6,
            "intermediate_size": 40,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "max_position_embeddings": 256,
            "tie_word_embeddings": False,
            "sliding_window": None,
            "use_cache": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            **overrides,
        }
    )
    config._attn_implementation = attention
    model = model_class(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else 0.1 * noise)
    return model.to(dtype).train()


def random_row(lengths: Sequence[int], *, seed: int = 0, first_target: int | Callable[[int], int] = 0) -> Row:
    """Samples of random ids; in each, tokens from ``first_target`` on are targets of the position before them."""
    generator = torch.Generator().manual_seed(seed)
    ids, labels, positions, bounds = [], [], [], [0]
    for index, length in enumerate(lengths):
        sample = torch.randint(2, VOCABULARY, (length,), generator=generator)
        shifted = torch.cat((sample[1:], torch.tensor([IGNORE_INDEX])))
        start = first_target(index) if callable(first_target) else first_target
        shifted[: max(start - 1, 0)] = IGNORE_INDEX
        ids.append(sample)
        labels.append(shifted)
        positions.append(torch.arange(length))
        bounds.append(bounds[-1] + length)
    all_labels = torch.cat(labels)
    return Row(
        input_ids=torch.cat(ids),
        labels=all_labels,
        position_ids=torch.cat(positions),
        cu_seqlens=tuple(bounds),
        sample_ids=tuple(range(len(lengths))),
        num_targets=int((all_labels != IGNORE_INDEX).sum()),
    )


def run_config(
    optimizations: Sequence[OptimizationSetting] = (), *, parallel: ParallelDegrees | None = None, **overrides: Any
) -> RunConfig:
    return RunConfig(
        **{
            "name": "tiny",
            "model": "tiny",
            "dtype": "float32",
            "autocast": False,
            "max_length": 128,
            "data": DataConfig(train=("none",)),
            "parallel": parallel or ParallelDegrees(),
            "optimizations": tuple(optimizations),
            **overrides,
        }
    )


def setting(name: str, **knobs: Any) -> OptimizationSetting:
    return OptimizationSetting(name=name, knobs=tuple(knobs.items()))


def tiny_setup(
    model: PreTrainedModel,
    *optimizations: OptimizationSetting,
    mesh: Mesh | None = None,
    device: torch.device = CPU,
    adapter_dtype: torch.dtype | None = None,
    **overrides: Any,
) -> TrainingSetup:
    """The run of the real builder; adapters that it adds take the model's dtype unless told otherwise."""
    mesh = mesh or Mesh(degrees=ParallelDegrees(), rank=0)
    spec = model_spec_from_config("tiny", model.config.to_dict())
    config = run_config(optimizations, parallel=mesh.degrees, **overrides)
    dtype = adapter_dtype or next(model.parameters()).dtype
    setup = build_setup(config, spec, model, mesh, device, lambda *_: None, REGISTRY)
    for name, parameter in setup.model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(dtype)
    return setup


def loss_and_gradients(setup: TrainingSetup, row: Row, divide_by: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
    """One forward and backward of the run on its shard of ``row``."""
    setup.model.zero_grad()
    loss = forward_loss(setup, shard_row(row, setup.mesh, setup.device)) / divide_by
    loss.backward()
    return loss.detach(), gradients(setup.causal_lm)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def plain_loss_and_gradients(model: nn.Module, row: Row) -> tuple[Tensor, dict[str, Tensor]]:
    """What transformers itself says, sample by sample: its own attention, mask, positions, logits."""
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for start, end in pairwise(row.cu_seqlens):
        logits = model(input_ids=row.input_ids[None, start:end]).logits[0]
        loss = functional.cross_entropy(logits, row.labels[start:end], ignore_index=IGNORE_INDEX, reduction="sum")
        loss.backward()
        total += loss.detach().cpu()
    return total, gradients(model)


def assert_same_gradients(got: dict[str, Tensor], want: dict[str, Tensor], relative: float) -> None:
    """Every gradient, by name; the error is relative to the largest entry of that gradient."""
    assert got.keys() == want.keys(), sorted(got.keys() ^ want.keys())
    errors = {
        name: ((got[name] - want[name]).abs().max() / want[name].abs().max().clamp_min(1e-30)).item() for name in want
    }
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] <= relative, f"{worst}: relative error {errors[worst]:.3g} > {relative:.3g}"
