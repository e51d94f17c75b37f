"""Saves and restores a run: every rank takes part, rank 0 alone writes. Built by the worker, called by the trainer."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from core.parallel.sharded import gather
from core.train import saved_state
from core.train.checkpoint import prune, step_path, write_checkpoint
from core.train.progress import Origin, Progress, read_state, write_state
from core.train.setup import TrainingSetup
from planner.errors import EnvironmentProblem


class Saver:
    def __init__(
        self, setup: TrainingSetup, optimizer: torch.optim.Optimizer, *, checkpoints: Path, origin: Origin
    ) -> None:
        self.setup = setup
        self.optimizer = optimizer
        self.checkpoints = checkpoints
        self.origin = origin

    def path_of(self, step: int) -> Path:
        return step_path(self.checkpoints, step)

    def save(self, progress: Progress) -> EnvironmentProblem | None:
        """Write step-N and delete what exceeds save_total_limit; what the disk refused is the answer on every rank.

        Collective: every rank of the world.
        """
        setup = self.setup
        rng_states = saved_state.gather_rng_states(setup.device, setup.mesh.world)
        weights = saved_state.weight_tensors(setup.model)
        states = saved_state.optimizer_tensors(self.optimizer, setup.model, setup.sharded)
        if setup.sharded is not None:
            weights, states = (gather(tensors, rank=setup.mesh.rank) for tensors in (weights, states))
        problem = self._write(progress, rng_states, weights, states) if setup.mesh.rank == 0 else None
        if self.setup.mesh.world == 1:
            return problem
        words = [None if problem is None else (problem.what, problem.why, problem.fix)]
        dist.broadcast_object_list(words, src=0)
        return None if words[0] is None else EnvironmentProblem(words[0][0], why=words[0][1], fix=words[0][2])

    def restore(self, directory: Path) -> tuple[Progress, tuple[str, ...]]:
        """Bring the run to where ``directory`` was saved; also why it cannot go on bit for bit, () when it can.

        Raises: ConfigError when the checkpoint belongs to another model or optimizer.
        """
        setup = self.setup
        saved_state.load_weights(setup.model, directory)
        saved_state.load_optimizer(self.optimizer, setup.model, directory, setup.sharded)
        progress, origin = read_state(directory)
        reasons = origin.differences(self.origin)
        if not saved_state.restore_rng_state(setup.mesh.rank, setup.device, directory):
            reasons += (f"no random state was saved for rank {setup.mesh.rank}",)
        return progress, reasons

    def _write(
        self, progress: Progress, rng_states: dict[str, Tensor], weights: dict[str, Tensor], states: dict[str, Tensor]
    ) -> EnvironmentProblem | None:
        config = self.setup.config

        def fill(directory: Path) -> None:
            saved_state.save_weights(self.setup.model, directory, weights)
            saved_state.copy_tokenizer(config.model, directory)
            saved_state.save_optimizer(self.optimizer, self.setup.model, directory, states)
            saved_state.save_rng_states(rng_states, directory)
            scheduler = {"lr_scheduler_type": config.lr_scheduler_type, "learning_rate": config.learning_rate}
            write_state(directory, progress, self.origin, scheduler)

        try:
            write_checkpoint(self.checkpoints, progress.step, fill)
        except EnvironmentProblem as problem:
            return problem
        keep = [progress.best.step] if config.keep_best and progress.best is not None else []
        prune(self.checkpoints, limit=config.save_total_limit, keep=keep)
        return None
