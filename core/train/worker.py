"""One rank of a run: `python -P -m core.train.worker RUN_DIR`, under torchrun or alone. Started by the supervisor.

Exit codes: 0 done or stopped, 1 failed, 2 bad config or data, 4 out of memory, 5 environment. The supervisor learns
the reason by a `failure` event, people by the log.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.run.channel import Channel, RunChannel
from core.run.config_file import read_config
from core.run.directory import RunDirectory
from planner.errors import LongfitError
from planner.types import RunConfig

if TYPE_CHECKING:
    import torch

    from core.train.memory import MemoryMeter
    from core.train.trainer import Trainer

log = logging.getLogger(__name__)

OUT_OF_MEMORY_EXIT_CODE = 4
_GROUP_TIMEOUT_MINUTES = 60  # rank 0 may write and hash a checkpoint of many GB while the others wait for it


def main(arguments: list[str]) -> int:
    with Channel.connect() as channel:  # before torch: from its first moment on a worker ends with its supervisor
        worker = Worker(RunDirectory(Path(arguments[0]).resolve()), channel)
        try:
            worker.run()
        except BaseException as error:
            worker.tell_failure(error)
            sys.exit(exit_code(error))  # inside the block: leaving it must not say "done"
    return 0


class Worker:
    """Knows what is to be told of a failure: how far the run was and what memory it held."""

    def __init__(self, directory: RunDirectory, channel: RunChannel) -> None:
        self.directory = directory
        self.channel = channel
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.meter: MemoryMeter | None = None
        self.trainer: Trainer | None = None

    def run(self) -> None:
        config = read_config(self.directory.path)
        logging.basicConfig(
            level=logging.INFO if self.rank == 0 else logging.WARNING, stream=sys.stdout,
            format="%(message)s" if self.world == 1 else f"[rank {self.rank}] %(message)s",
        )  # fmt: skip
        logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)  # its advice is a hub's package
        device = self._prepare(config)
        import torch.distributed as dist

        from core.parallel.mesh import build_mesh
        from core.train.assembly import build_trainer

        assert self.meter is not None
        mesh = build_mesh(config.parallel, rank=self.rank, world=self.world)
        self.trainer = build_trainer(
            self.directory, config, mesh=mesh, device=device, channel=self.channel, meter=self.meter
        )
        outcome = self.trainer.run()
        log.info("%s after step %d of %d", outcome, self.trainer.progress.step, self.trainer.total_steps)
        self._tell_memory()
        if self.world > 1:
            dist.destroy_process_group()

    def tell_failure(self, error: BaseException) -> None:
        traceback.print_exception(error)
        self._tell_memory()
        step = None if self.trainer is None else self.trainer.progress.step + 1
        memory: dict[str, Any] | None = None
        if is_out_of_memory(error):
            memory = None if self.meter is None else self.meter.at_failure()
            where = f" ({memory['instant']})" if memory and memory["instant"] else ""
            if self.trainer is not None:
                row = self.trainer.row_tokens  # 0 in an evaluation before the first step
                where = f" in step {step}{where}" + (f", with a row of {row:,} tokens" if row else "")
            error = MemoryError(f"Out of memory{where}. {str(error).splitlines()[0] if str(error) else ''}")
        self.channel.failed(error, step=step, memory=memory)

    def _tell_memory(self) -> None:
        if self.meter is None or self.meter.peak is None:
            return
        step = 0 if self.trainer is None else self.trainer.progress.step
        for row in self.meter.rows(step):
            self.channel.memory(row)
        self.channel.event("memory_peak", **self.meter.peak_event(self.directory.plan))

    def _prepare(self, config: RunConfig) -> torch.device:
        """Imports, threads, determinism, device, process group and, with all of that in place, the memory baseline."""
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        import torch
        import transformers

        import core.train.assembly  # noqa: F401  (a part of the baseline)
        from core.train.memory import MemoryMeter, build_probe, warm_up
        from core.train.report import require_reporters

        require_reporters(config.report_to)
        transformers.utils.logging.disable_progress_bar()
        if "OMP_NUM_THREADS" not in os.environ:
            local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // local_world))
        device = torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        torch.use_deterministic_algorithms(config.deterministic)
        if self.world > 1:
            _init_process_group(device)
        warm_up(device)
        self.meter = MemoryMeter(build_probe(device), rank=self.rank)
        return device


def exit_code(error: BaseException) -> int:
    if is_out_of_memory(error):
        return OUT_OF_MEMORY_EXIT_CODE
    return error.exit_code if isinstance(error, LongfitError) else 1


def is_out_of_memory(error: BaseException) -> bool:
    """torch raises its own class on a GPU, and on the CPU a plain RuntimeError that says so."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return (
        isinstance(error, MemoryError)
        or "OutOfMemoryError" in names
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def _init_process_group(device: torch.device) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    timeout = timedelta(minutes=_GROUP_TIMEOUT_MINUTES)
    if device.type == "cuda":
        dist.init_process_group("nccl", timeout=timeout, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=timeout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
