"""The command that runs the workers of one run: argv, environment, folder, and the same as a shell script.

Called by the supervisor, which starts exactly this, and by RunDirectory, which writes it to command.sh.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core.run.interpreter import child_environment, python_argv
from core.run.redact import is_secret_name, redact_text
from planner.types import RunConfig

Device = Literal["cpu", "cuda"]
DEFAULT_TARGET = ("-m", "core.train.worker")  # what python, or torchrun, is told to run; RUN_DIR follows

# Inherited variables that change what a run computes or where it finds its model: command.sh repeats them.
_RELEVANT_PREFIXES = (
    "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "OMP_", "MKL_", "MALLOC_", "HF_", "HUGGINGFACE_",
    "TRANSFORMERS_", "PYTHON", "LD_LIBRARY_PATH", "LONGFIT_", "TRITON_", "WANDB_", "TRACKIO_",
)  # fmt: skip
_NOT_REPEATED = frozenset({"LONGFIT_SOCKET"})  # names a supervisor that a run by hand does not have

# glibc raises its mmap threshold with each large block it frees, up to 32 MiB, and then keeps such blocks. Fixed
# thresholds give freed tensors back to the system, so that resident memory follows the plan (core/train/memory.py has
# the measurement: 214 MB instead of 308-321 MB where tensors peak at 218 MB, for steps that take 25-40 % longer).
_CPU_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    argv: tuple[str, ...]
    environment: Mapping[str, str]  # complete, secrets included: never written as it is
    directory: Path
    has_launcher: bool  # torchrun stands between the supervisor and the ranks


def worker_command(
    config: RunConfig, run_dir: Path, *, device: Device, base: Mapping[str, str], num_cores: int | None = None,
    target: tuple[str, ...] = DEFAULT_TARGET,
) -> WorkerCommand:  # fmt: skip
    """One process per rank: torchrun for several, the worker itself for one. A variable the user set is kept, but for
    those that isolate the child. torchrun --standalone picks a free port on each launch."""
    world = config.parallel.world
    cores = num_cores if num_cores is not None else _usable_cores()
    defaults = {"OMP_NUM_THREADS": str(max(1, cores // world)), "TOKENIZERS_PARALLELISM": "false"}
    forced = {}
    if device == "cpu":
        defaults |= _CPU_ALLOCATOR
        forced = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": base.get("GLOO_SOCKET_IFNAME", _loopback())}
    else:
        # The allocator reads it when torch starts. PCI order: our GPU numbers are then those of nvidia-smi.
        defaults |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if Path(config.model).is_dir():
        defaults |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if world == 1:
        argv = python_argv("-u", *target, str(run_dir))
        forced |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    else:
        argv = python_argv(
            "-m", "core.run.launcher", "--standalone", "--local-addr", "127.0.0.1",
            "--nproc-per-node", str(world), "--max-restarts", "0", *target, str(run_dir),
        )  # fmt: skip
    kept = {name: value for name, value in base.items() if name not in _RANK_VARIABLES}
    return WorkerCommand(
        argv=argv, environment=child_environment({**defaults, **kept, **forced}), directory=run_dir,
        has_launcher=world > 1,
    )  # fmt: skip


# Of a torchrun or Slurm step that longfit itself was started from: they would describe another job to the workers.
_RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
)


def command_script(command: WorkerCommand) -> str:
    """command.sh: runs the workers by hand, unsupervised. Secrets are left to the environment it is run in."""
    relevant = {
        name: value for name, value in sorted(command.environment.items())
        if name.startswith(_RELEVANT_PREFIXES) or name in _RANK_VARIABLES or name.startswith("TOKENIZERS_")
    }  # fmt: skip
    lines = [
        "#!/bin/sh",
        "# The workers of this run, as the supervisor starts them. By hand: no events, no metrics, only train output.",
        "# Anything else in the environment was inherited and is not repeated here.",
        f"cd {shlex.quote(str(command.directory))} || exit 1",
    ]
    for name, value in relevant.items():
        if name in _NOT_REPEATED:
            continue
        if is_secret_name(name) or redact_text(value) != value:
            lines.append(f"# {name} was set; its value is not written down. Set it yourself if it is needed.")
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    lines.append("exec " + shlex.join(command.argv) + ' "$@"')
    return "\n".join(lines) + "\n"


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _loopback() -> str:
    """gloo resolves the host name otherwise, which fails or hangs on machines without DNS for themselves."""
    return "lo" if os.path.isdir("/sys/class/net/lo") else "lo0"
