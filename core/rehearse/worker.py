"""One rank of a rehearsal: `python -P -m core.rehearse.worker FOLDER`, under torchrun or alone. Started by
app/services/rehearse.py.

The trainer, the optimizations and the memory meter are those of a run; model and data are random, of true shape and
of the longest row, and nothing is saved. Exit codes are those of core/train/worker.py.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.rehearse.folder import answer_path, packs_last_step, read_request
from core.run.atomic import atomic_write
from core.run.channel import NullChannel
from core.run.config_file import read_config
from core.run.directory import RunDirectory
from core.train.worker import Worker, exit_code
from planner.errors import ConfigError
from planner.types import RunConfig

if TYPE_CHECKING:
    import torch

    from core.train.progress import Progress

log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    channel = Notes()
    worker = RehearsalWorker(RunDirectory(Path(arguments[0]).resolve()), channel)
    try:
        worker.run()
    except BaseException as error:
        worker.tell_failure(error)
        channel.failure |= {"exit_code": exit_code(error), "instant": worker.last_instant}
        channel.write(answer_path(worker.directory.path, worker.rank))
        return exit_code(error)
    channel.write(answer_path(worker.directory.path, worker.rank))
    return 0


class Notes(NullChannel):
    """Keeps what a run would report."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.memory_rows: list[dict[str, Any]] = []
        self.failure: dict[str, Any] = {}

    def event(self, type: str, **data: Any) -> None:
        self.events.append({"type": type, **data})

    def metric(self, row: Mapping[str, Any]) -> None:
        self.metrics.append(dict(row))

    def memory(self, row: Mapping[str, Any]) -> None:
        self.memory_rows.append(dict(row))

    def failed(
        self, error: BaseException, *, step: int | None = None, memory: Mapping[str, Any] | None = None
    ) -> None:  # fmt: skip
        self.failure = {"kind": type(error).__name__, "message": str(error), "step": step}

    def write(self, path: Path) -> None:
        answer = {
            "events": self.events, "metrics": self.metrics, "memory": self.memory_rows, "failure": self.failure or None
        }  # fmt: skip
        atomic_write(path, json.dumps(answer).encode())


class RehearsalWorker(Worker):
    @property
    def last_instant(self) -> str | None:
        """What was being measured when it ended."""
        return None if self.meter is None else self.meter.last_instant

    def run(self) -> None:
        request = read_request(self.directory.path)
        config = replace(
            read_config(self.directory.path), max_steps=request["steps"], logging_steps=1, save_steps=0, eval_steps=0,
            keep_best=False, report_to=(), lr_scheduler_type="constant", warmup_ratio=0.0, warmup_steps=0,
        )  # fmt: skip
        logging.basicConfig(level=logging.INFO if self.rank == 0 else logging.WARNING, stream=sys.stderr)
        device = self._prepare(config)
        assert self.meter is not None
        if request["limit_bytes"] is not None:
            limit_memory(request["limit_bytes"], device, baseline_bytes=self.meter.probe.baseline_bytes)
        import torch.distributed as dist

        self.trainer = self._build(config, request["model_config"], device)
        self.trainer.run()
        self._tell_memory()
        if self.world > 1:
            dist.destroy_process_group()

    def _build(self, config: RunConfig, model_config: Mapping[str, Any], device: torch.device) -> Any:
        import torch

        from core.optimizations import REGISTRY
        from core.parallel.mesh import build_mesh
        from core.rehearse.random_model import random_model
        from core.rehearse.rows import LongestRows
        from core.train.build import build_setup, optimizer_of, weights_device
        from core.train.report import Reports
        from core.train.trainer import Trainer

        mesh = build_mesh(config.parallel, rank=self.rank, world=self.world)

        def emit(type: str, data: Mapping[str, Any]) -> None:
            self.channel.event(type, **data)

        with self.meter.during("load"):
            model, spec = random_model(config, model_config, weights_device(config, device))
            setup = build_setup(config, spec, model, mesh, device, emit, REGISTRY)
            optimizer = optimizer_of(setup)
        torch.manual_seed(config.seed + 1 + mesh.rank)

        def rows(samples: int, count: int, packed_epoch: int | None = None) -> LongestRows:
            return LongestRows(
                max_length=config.max_length, samples_per_row=samples, rows_per_epoch=count,
                vocab_size=spec.vocab_size, mesh=mesh, packed_epoch=packed_epoch,
            )  # fmt: skip

        steps = config.max_steps or 0  # each is an epoch
        packed_epoch = steps - 1 if packs_last_step(config, steps) else None
        evaluates = bool(config.data.eval) or config.data.eval_fraction > 0
        return Trainer(
            setup,
            optimizer=optimizer,
            batches=rows(config.per_device_train_batch_size, config.gradient_accumulation_steps, packed_epoch),
            eval_batches=rows(config.per_device_eval_batch_size, 1) if evaluates else None,
            registry=REGISTRY,
            saver=NothingSaved(),
            channel=self.channel,
            meter=self.meter,
            open_reports=lambda first_step: Reports(
                (), self.directory.path, {}, first_step=first_step, warn=lambda message: log.warning("%s", message)
            ),
        )


class NothingSaved:
    """What the trainer takes for a Saver."""

    def save(self, progress: Progress) -> None:
        return None

    def path_of(self, step: int) -> Path:
        return Path("nothing-is-saved")


def limit_memory(limit_bytes: int, device: torch.device, *, baseline_bytes: int) -> None:
    """Let this process use no more than a smaller device has: beyond it, allocating fails as it would there.

    On a GPU the allocator gets what the context leaves of it, on a CPU the data segment of the process.
    Raises:
        ConfigError: the limit is above what the device has, or below what the process holds before it starts.
    """
    if limit_bytes <= baseline_bytes:
        raise ConfigError(
            f"A memory limit of {limit_bytes:,} bytes is below the {baseline_bytes:,} that the process holds already.",
            why="The CUDA context, or the interpreter with torch, counts too.", fix="Raise --memory-limit.",
        )  # fmt: skip
    if device.type == "cuda":
        import torch

        total = torch.cuda.get_device_properties(device).total_memory
        if limit_bytes > total:
            raise ConfigError(
                f"A memory limit of {limit_bytes:,} bytes is above the {total:,} of this GPU.",
                fix="Lower --memory-limit, or leave it out.",
            )
        torch.cuda.set_per_process_memory_fraction((limit_bytes - baseline_bytes) / total, device)
        return
    import resource

    with open("/proc/self/status") as status:
        data_bytes = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    allowed = data_bytes + limit_bytes - baseline_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
