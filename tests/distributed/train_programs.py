"""What one rank does in the tests of training over several processes. Called by RankPool with (rank, world, ...)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from core.parallel.mesh import build_mesh
from core.run.config_file import read_config
from core.run.directory import RunDirectory
from core.train import trainer
from core.train.optimizer import reduce_gradients
from core.train.trainer import NonFinite
from tests.core.train.runs import RecordingChannel, build, curve, train, weights


def train_rank(rank: int, world: int, path: str, stop_after: int | None = None) -> dict[str, Any]:
    directory = RunDirectory(Path(path))
    mesh = build_mesh(read_config(directory.path).parallel, rank=rank, world=world)
    # Only rank 0's wish counts: the others are asked earlier here, which must change nothing.
    wish = stop_after if rank == 0 else 1 if stop_after is not None else None
    outcome, channel, ours = train(directory, stop_after=wish, mesh=mesh)
    return {
        "outcome": outcome,
        "curve": curve(channel),
        "events": channel.events,
        "memory_ranks": {row["rank"] for row in channel.memory_rows},
        "weights": weights(ours),
        "step": ours.progress.step,
    }


def poison_rank(rank: int, world: int, path: str, guilty: int) -> tuple[str, int]:
    """The loss of one rank becomes NaN in step 2."""
    directory = RunDirectory(Path(path))
    built = build(
        directory, RecordingChannel(), build_mesh(read_config(directory.path).parallel, rank=rank, world=world)
    )
    forward = trainer.forward_loss

    def poisoned(setup: Any, shard: Any) -> torch.Tensor:
        loss = forward(setup, shard)
        return loss * math.nan if rank == guilty and built.progress.step == 1 else loss

    trainer.forward_loss = poisoned
    try:
        built.run()
    except NonFinite as error:
        return str(error), built.progress.step
    finally:
        trainer.forward_loss = forward
    raise AssertionError("the run went on")


def fail_to_save(rank: int, world: int, path: str) -> str:
    """Rank 0's disk refuses; every rank must hear of it instead of waiting."""
    try:
        train_rank(rank, world, path)
    except OSError as error:
        return f"OSError {error}"
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return "saved"


def reduce_small_buckets(rank: int, world: int, bucket_bytes: int) -> dict[str, Any]:
    """Gradients of unequal dtype and size, one of them missing on rank 1, summed in buckets of ``bucket_bytes``."""
    generator = torch.Generator().manual_seed(rank)
    shapes = [((7, 3), torch.float32), ((5,), torch.bfloat16), ((40, 40), torch.float32), ((2,), torch.float64)]
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape, dtype in shapes]
    own = [torch.randn(p.shape, generator=generator).to(p.dtype) for p in parameters]
    if rank == 1:
        own[1] = torch.zeros_like(own[1])
    for index, (parameter, gradient) in enumerate(zip(parameters, own)):
        parameter.grad = None if rank == 1 and index == 1 else gradient.clone()
    norm = reduce_gradients(parameters, bucket_bytes=bucket_bytes)
    dist.barrier()
    return {"own": own, "summed": [p.grad for p in parameters], "norm": norm.item()}
