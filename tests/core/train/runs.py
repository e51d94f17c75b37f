"""Run directories made by hand, a channel that remembers, and training in this process as a worker does it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.data.store import StoreWriter, TokenStore
from core.parallel.mesh import Mesh, build_mesh
from core.run.config_file import read_config, write_config
from core.run.directory import RunDirectory
from core.train.assembly import build_trainer
from core.train.memory import MemoryMeter, build_probe
from core.train.trainer import Trainer
from planner.types import DataConfig, OptimizationSetting, ParallelDegrees, RunConfig

CPU = torch.device("cpu")


class RecordingChannel:
    """Keeps what it is told; asks to stop once the row of step ``stop_after`` was seen."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.rows: list[dict[str, Any]] = []
        self.memory_rows: list[dict[str, Any]] = []
        self.failures: list[tuple[BaseException, int | None]] = []
        self.stop_after = stop_after
        self.is_closed = False

    @property
    def stop_requested(self):
        # Read by the trainer while step n is at work, before its row is written.
        return "save" if self.stop_after is not None and len(self.train_rows) >= self.stop_after - 1 else None

    @property
    def train_rows(self):
        return [row for row in self.rows if "loss" in row]

    def event(self, type, **data):
        json.dumps(data)
        self.events.append((type, data))

    def metric(self, row):
        self.rows.append(dict(row))

    def memory(self, row):
        self.memory_rows.append(dict(row))

    def sync(self):
        return True

    def failed(self, error, *, step=None, memory=None):
        self.failures.append((error, step))
        self.memory_ended = memory

    def close(self):
        self.is_closed = True

    def of(self, type):
        return [data for name, data in self.events if name == type]


def setting(name: str, **knobs: Any) -> OptimizationSetting:
    return OptimizationSetting(name=name, knobs=tuple(knobs.items()))


LORA = setting("lora", rank=4, alpha=8, targets="all-linear", dropout=0.0, adapter_dtype="float32")


def make_store(path: Path, *, lengths: list[int], seed: int = 0, vocabulary: int = 290) -> Path:
    """Samples whose ids count upwards from a random start, with the first third as prompt: easy to learn."""
    generator = np.random.default_rng(seed)
    with StoreWriter(path) as writer:
        for line, length in enumerate(lengths):
            tokens = (generator.integers(2, vocabulary) + np.arange(length)) % (vocabulary - 2) + 2
            targets = np.arange(length) >= max(1, length // 3)
            writer.add(tokens.astype(np.int32), targets, line=line)
        writer.finish(["made by hand"])
    return path


def make_run(
    tmp_path: Path,
    model: Path | str,
    *optimizations: OptimizationSetting,
    lengths: tuple[int, ...] = (12, 20, 7, 30, 16, 9, 25, 11, 14, 18),
    eval_lengths: tuple[int, ...] = (),
    name: str = "run",
    **overrides: Any,
) -> RunDirectory:
    directory = RunDirectory(tmp_path / name)
    directory.checkpoints.mkdir(parents=True)
    config = RunConfig(
        **{
            "name": name,
            "model": str(model),
            "dtype": "float32",
            "autocast": False,
            "max_length": 64,
            "data": DataConfig(train=("made by hand",)),
            "parallel": ParallelDegrees(),
            "optimizations": optimizations or (LORA,),
            "learning_rate": 1e-2,
            "lr_scheduler_type": "cosine",
            "max_steps": 6,
            **overrides,
        }
    )
    write_config(directory.path, config)
    train = make_store(directory.path / "train.store", lengths=list(lengths))
    evaluation = make_store(directory.path / "eval.store", lengths=list(eval_lengths), seed=1) if eval_lengths else None
    directory.data.write_text(json.dumps({"train": str(train), "eval": str(evaluation) if evaluation else None}))
    return directory


def change(directory: RunDirectory, **changes: Any) -> None:
    write_config(directory.path, replace(read_config(directory.path), **changes))


def build(
    directory: RunDirectory, channel: RecordingChannel, mesh: Mesh | None = None, device: torch.device = CPU
) -> Trainer:
    mesh = mesh or build_mesh(ParallelDegrees(), rank=0, world=1)
    meter = MemoryMeter(build_probe(device), rank=mesh.rank)
    config = read_config(directory.path)
    return build_trainer(directory, config, mesh=mesh, device=device, channel=channel, meter=meter)


def train(
    directory: RunDirectory,
    *,
    stop_after: int | None = None,
    mesh: Mesh | None = None,
    device: torch.device = CPU,
) -> tuple[str, RecordingChannel, Trainer]:
    """Build, resume if there is a checkpoint, run: (outcome, what was told, the trainer)."""
    channel = RecordingChannel(stop_after)
    trainer = build(directory, channel, mesh, device)
    outcome = trainer.run()
    return outcome, channel, trainer


def crash(directory: RunDirectory, *, after: int) -> RecordingChannel:
    """Train until the row of step ``after`` is told, then fail as a killed process does: without another word."""

    class Killed(BaseException):
        pass

    class Dying(RecordingChannel):
        def metric(self, row):
            super().metric(row)
            if row["step"] == after:
                raise Killed

    channel = Dying()
    with pytest.raises(Killed):
        build(directory, channel).run()
    return channel


def curve(*channels: RecordingChannel) -> list[dict[str, Any]]:
    """All that a metric row says but for the clock."""
    timing = ("time", "seconds", "tokens_per_second")
    return [{k: v for k, v in row.items() if k not in timing} for channel in channels for row in channel.rows]


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    named = trainer.setup.model.named_parameters()
    return {name: parameter.detach().clone() for name, parameter in named if parameter.requires_grad}


def plain_eval_loss(model: Any, store: TokenStore) -> tuple[float, int]:
    """(mean cross entropy of the targets by the model's own forward, how many there are)"""
    total, num_targets = 0.0, 0
    with torch.no_grad():
        for index in range(len(store)):
            tokens, targets = (torch.tensor(array) for array in store.sample(index))
            logits = model(input_ids=tokens[None].long()).logits[0, :-1]
            total += torch.nn.functional.cross_entropy(
                logits[targets[1:]], tokens[1:][targets[1:]].long(), reduction="sum"
            ).item()
            num_targets += int(targets.sum())
    return total / num_targets, num_targets
