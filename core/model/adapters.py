"""LoRA adapters around a loaded model, by PEFT. Called by `lora` and `qlora` (core/optimizations)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import nn

from core.optimizations.evidence import NotActive
from planner import gemma3
from planner.errors import ConfigError

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup

ADAPTER_NAME = "default"


def add_lora(
    model: nn.Module, *, rank: int, alpha: int, targets: str, dropout: float, dtype: torch.dtype, seed: int
) -> PeftModel:
    """Wrap the chosen linears of the decoder layers; everything else is frozen.

    ``targets`` is "all-linear" (every linear of a decoder layer, so not the head) or a comma list of their names. The
    initial A comes from ``seed`` alone, so that every rank starts from the same adapter; B is 0.

    Raises:
        ConfigError: a target that is no linear of the decoder layers. The head is one: the chunked loss reads its
            weight, and an adapter there would silently not train.
    """
    names = linear_names(model)
    chosen = names if targets == "all-linear" else [name.strip() for name in targets.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in names]
    if unknown or not chosen:
        raise ConfigError(
            f"LoRA cannot target {', '.join(unknown) or repr(targets)}.",
            why="Adapters go to the linears of the decoder layers; the head and the embeddings stay as they are, "
            "because the loss reads the head's weight and an adapter on it would never train.",
            fix=f"Use all-linear, or some of: {', '.join(names)}.",
        )
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=_targets(model, [name for name in names if name in chosen]),
        lora_dropout=dropout,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):  # PEFT initialises on the CPU
        torch.manual_seed(seed)
        peft_model = get_peft_model(model, config, autocast_adapter_dtype=False)
    for parameter in peft_model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return peft_model


def _targets(model: nn.Module, names: list[str]) -> list[str] | str:
    """For PEFT. A tower, which the run does not load, has linears of the same names: whoever loads the adapter into the
    whole model reads a pattern that does not match them."""
    if model.config.model_type != gemma3.WITH_PICTURES:
        return names
    return rf".*\.language_model\.layers\..*\.({'|'.join(names)})"


def linear_names(model: nn.Module) -> list[str]:
    """Last names of the linears inside the decoder layers, in the order of the model: ["q_proj", ...]."""
    modules = model.get_decoder().layers.named_modules()
    return list(dict.fromkeys(name.rpartition(".")[2] for name, module in modules if isinstance(module, nn.Linear)))


def lora_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """The adapted modules by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def train_adapters(
    setup: TrainingSetup, name: str, *, rank: int, alpha: int, targets: str, dropout: float, adapter_dtype: str
) -> None:
    """Wrap the run's model and watch, under ``name``, which adapter matrices a gradient reaches."""
    setup.model = add_lora(
        setup.model, rank=rank, alpha=alpha, targets=targets, dropout=dropout, dtype=getattr(torch, adapter_dtype),
        seed=setup.config.seed,
    )  # fmt: skip
    reached = setup.seen.setdefault(name, set())
    for module_name, layer in lora_layers(setup.model).items():
        for which, matrix in (("A", layer.lora_A), ("B", layer.lora_B)):
            hook = matrix[ADAPTER_NAME].weight.register_post_accumulate_grad_hook(
                lambda _, key=f"{module_name}.{which}": reached.add(key)
            )
            setup.undo.append(hook.remove)


def prove_adapters(setup: TrainingSetup, name: str) -> tuple[int, int]:
    """(adapters, trainable parameters).

    Raises:
        NotActive: a gradient did not reach every matrix, or something else than adapters trains.
    """
    adapters, reached = lora_layers(setup.model), setup.seen[name]
    silent = [f"{module}.{matrix}" for module in adapters for matrix in "AB" if f"{module}.{matrix}" not in reached]
    if silent or not adapters:
        raise NotActive(f"{name}: no gradient reached {len(silent)} adapter matrices, the first is {silent[:1]}")
    trained_base = [n for n, p in setup.model.named_parameters() if p.requires_grad and ".lora_" not in n]
    if trained_base:
        raise NotActive(f"{name}: {len(trained_base)} base parameters are not frozen, the first is {trained_base[0]}")
    return len(adapters), sum(p.numel() for p in setup.model.parameters() if p.requires_grad)
