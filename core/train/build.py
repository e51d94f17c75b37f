"""From a loaded model and a resolved config to a run that is ready to step. Called by the worker, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from core.attention.kernel import ReferenceKernel
from core.attention.sequence import LocalAttention
from core.loss.head_loss import StockLoss
from core.optimizations.evidence import Evidence
from core.optimizations.flash_attention import FlashAttention
from core.parallel.mesh import Mesh
from core.train.optimizer import build_optimizer
from core.train.setup import TrainingSetup
from planner.errors import ConfigError
from planner.layer_policy import CARRIED_OUT, layer_engine_obstacle
from planner.optimization import Optimization, Registry, instantiate
from planner.types import ModelSpec, RunConfig


def build_setup(
    config: RunConfig,
    spec: ModelSpec,
    model: nn.Module,
    mesh: Mesh,
    device: torch.device,
    emit: Callable[[str, Mapping[str, Any]], None],
    registry: Registry,
) -> TrainingSetup:
    """Apply every enabled optimization, in the order of their stages, to a model from ``load_model``.

    Raises:
        ConfigError: an optimization cannot be applied to this model or mesh, or the model's head has a bias.
        NotActive: no attention kernel gives right numbers here, or not the one that was asked for.
    """
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise ConfigError(
            f"The output head of {spec.name} has a bias.",
            why="The loss multiplies hidden states by the head's weight alone.",
            fix="Choose a model without a bias in its head.",
        )
    setup = TrainingSetup(
        config=config, spec=spec, device=device, mesh=mesh, model=model, attention=LocalAttention(ReferenceKernel()),
        loss=StockLoss(), emit=emit,
    )  # fmt: skip
    enabled = enabled_optimizations(config, registry)
    if config.optimization(FlashAttention.name) is None:
        enabled = _in_order([*enabled, FlashAttention()])  # every run chooses a kernel
    for optimization in enabled:
        if not _is_carried_out_by_layers(optimization, config):
            optimization.apply(setup)
    obstacle = layer_engine_obstacle(config, spec)
    if config.engine == "layer" and obstacle is not None:
        raise ConfigError(
            "engine: layer cannot run this.", why=f"The layer engine cannot: {obstacle}.", fix="Use engine: auto.",
        )  # fmt: skip
    if config.engine == "module" and device.type == "cuda" and obstacle is not None:
        emit("fallback", {"optimization": "engine", "reason": f"transformers' modules compute the layers: {obstacle}"})
    if config.engine == "layer":
        from core.layer.engine import LayerEngine  # most runs of other families do without

        setup.layer_engine = LayerEngine(setup)
    return setup


def weights_device(config: RunConfig, device: torch.device) -> torch.device:
    """Where a model is loaded that is to train on ``device``: the host, where it will be sharded, so that the device
    never holds it whole. Each process then reads all of it, through the page cache that they share."""
    return device if config.optimization("fsdp") is None else torch.device("cpu")


def optimizer_of(setup: TrainingSetup) -> torch.optim.Optimizer:
    """The run's optimizer, once every optimization was applied; it becomes ``setup.optimizer``."""
    config = setup.config
    # each rank rounds its own rows by draws of its own
    seed = config.seed if setup.sharded is None else config.seed * setup.mesh.world + setup.mesh.rank
    setup.optimizer = build_optimizer(
        setup.model, optim=config.optim, learning_rate=config.learning_rate, weight_decay=config.weight_decay,
        betas=(config.adam_beta1, config.adam_beta2), epsilon=config.adam_epsilon,
        master_weights=config.master_weights, projection=setup.projection, seed=seed, trained=setup.trained.values(),
    )  # fmt: skip
    return setup.optimizer


def verify_setup(setup: TrainingSetup, registry: Registry) -> tuple[Evidence, ...]:
    """Proof that each enabled optimization is active; call it after the first step, with its gradients formed.

    Raises:
        NotActive: the first one that is not, with the reason.
    """
    engine = () if setup.layer_engine is None else setup.layer_engine.evidence()
    return *engine, *(
        optimization.verify(setup)
        for optimization in enabled_optimizations(setup.config, registry)
        if not _is_carried_out_by_layers(optimization, setup.config)
    )


def enabled_optimizations(config: RunConfig, registry: Registry) -> list[Optimization]:
    """In the order in which they are applied."""
    return _in_order([instantiate(setting, registry) for setting in config.optimizations])


def _is_carried_out_by_layers(optimization: Optimization, config: RunConfig) -> bool:
    return config.engine == "layer" and optimization.name in CARRIED_OUT


def _in_order(optimizations: list[Optimization]) -> list[Optimization]:
    return sorted(optimizations, key=lambda optimization: optimization.stage)
