"""From a run directory to a Trainer that is ready to run, resumed where there is a checkpoint. Called by the worker."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from core.data.batches import BatchPlan
from core.data.store import TokenStore
from core.model.load import load_model
from core.optimizations import REGISTRY
from core.parallel.mesh import Mesh
from core.run.channel import RunChannel
from core.run.directory import RunDirectory
from core.train.build import build_setup, optimizer_of, weights_device
from core.train.checkpoint import newest_valid
from core.train.memory import MemoryMeter
from core.train.progress import Origin, installed_versions
from core.train.report import Reports
from core.train.saver import Saver
from core.train.trainer import Trainer
from planner.errors import ConfigError
from planner.types import RunConfig

log = logging.getLogger(__name__)


def build_trainer(
    directory: RunDirectory,
    config: RunConfig,
    *,
    mesh: Mesh,
    device: torch.device,
    channel: RunChannel,
    meter: MemoryMeter,
) -> Trainer:
    """Load, apply the optimizations, lay out the data, and continue the newest valid checkpoint.

    Collective: every rank of the world.
    Raises: ConfigError for a model, data or checkpoint that cannot be used; NotActive for a wrong attention kernel.
    """

    def tell(type: str, **data: Any) -> None:
        if mesh.rank == 0:
            channel.event(type, **data)

    def emit(type: str, data: Mapping[str, Any]) -> None:
        tell(type, **data)

    def open_reports(first_step: int) -> Reports:
        return Reports(
            config.report_to, directory.path, asdict(config), first_step=first_step,
            warn=lambda message: tell("warning", message=message),
        )  # fmt: skip

    tell("phase", name="load")
    with meter.during("load"):
        model, spec = load_model(config, weights_device(config, device))
        setup = build_setup(config, spec, model, mesh, device, emit, REGISTRY)
        _refuse_float16_parameters(setup.model)
        optimizer = optimizer_of(setup)
    # The adapters are equal on every rank; from here on each rank draws its own dropout masks.
    torch.manual_seed(config.seed + 1 + mesh.rank)
    tell("phase", name="data")
    batches, eval_batches = _batches(directory, config, mesh, packing=setup.packing, pack_length=setup.pack_length)
    trainer = Trainer(
        setup,
        optimizer=optimizer,
        batches=batches,
        eval_batches=eval_batches,
        registry=REGISTRY,
        saver=Saver(setup, optimizer, checkpoints=directory.checkpoints, origin=_origin(config, device)),
        channel=channel,
        meter=meter,
        open_reports=open_reports,
    )
    checkpoint = _checkpoint_to_resume(directory.checkpoints, mesh, tell)
    if checkpoint is not None:
        with meter.during("load"):
            trainer.resume_from(checkpoint)
    return trainer


def _refuse_float16_parameters(model: nn.Module) -> None:
    """Updates of a usual size round to nothing in float16, and its gradients cannot be unscaled in place."""
    names = [name for name, p in model.named_parameters() if p.requires_grad and p.dtype == torch.float16]
    if names:
        raise ConfigError(
            f"{len(names)} trainable parameters are float16, {names[0]} among them.",
            why="float16 holds 11 bits: an update of a usual size rounds to nothing.",
            fix="Train float32 adapters on the float16 model (lora: {adapter_dtype: float32}), or use dtype: bfloat16.",
        )


def _batches(
    directory: RunDirectory, config: RunConfig, mesh: Mesh, *, packing: bool, pack_length: int
) -> tuple[BatchPlan, BatchPlan | None]:
    """Micro-batches of this rank: shuffled by the seed for training, in the order of the store for evaluation."""
    try:
        paths = json.loads(directory.data.read_text(encoding="utf-8"))
        train, evaluation = paths["train"], paths.get("eval")
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{directory.data} does not name the prepared data of this run.", why=f"{type(error).__name__}: {error}",
            fix="Launch the run with `longfit train`, which prepares it.",
        ) from error  # fmt: skip
    common: dict[str, Any] = {
        "packing": packing,
        "capacity": config.max_length,
        "pack_length": pack_length,
        "data_rank": mesh.data_rank,
        "data_world": mesh.degrees.data,
        "seed": config.seed,
    }
    batches = BatchPlan(TokenStore(train), units_per_batch=config.per_device_train_batch_size, **common)
    if evaluation is None:
        return batches, None
    eval_store = TokenStore(evaluation)
    return batches, BatchPlan(eval_store, units_per_batch=config.per_device_eval_batch_size, shuffle=False, **common)


def _origin(config: RunConfig, device: torch.device) -> Origin:
    if device.type == "cuda":
        name, is_deterministic = torch.cuda.get_device_name(device), config.deterministic
    else:
        # A sum split over another number of threads rounds differently.
        name, is_deterministic = f"cpu, {torch.get_num_threads()} threads", True
    return Origin(
        config_hash=config.hash(), world=config.parallel.world, device=name, deterministic=is_deterministic,
        versions=installed_versions(),
    )  # fmt: skip


def _checkpoint_to_resume(checkpoints: Path, mesh: Mesh, tell: Any) -> Path | None:
    """The newest valid one, looked for by rank 0; what was passed over is told with its reason."""
    choice: list[str | None] = [None]
    if mesh.rank == 0:
        found = newest_valid(checkpoints)
        for skipped in found.skipped:
            log.warning("checkpoint %s was passed over: %s", skipped.path.name, skipped.reason)
            tell("warning", message=f"checkpoint {skipped.path.name} was passed over: {skipped.reason}")
        choice = [None if found.path is None else str(found.path)]
    if mesh.world > 1:
        dist.broadcast_object_list(choice, src=0)
    return None if choice[0] is None else Path(choice[0])
