"""env.json: the versions, machine and source commit of a run, without secrets. Called once, when a run is created."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

import core
from core.run.command import Device
from core.run.nvml import Nvml
from core.run.redact import redact_environment, redact_text

PACKAGES = (
    "longfit", "torch", "transformers", "peft", "accelerate", "safetensors", "tokenizers", "numpy", "triton",
    "liger-kernel", "galore-torch", "bitsandbytes", "flash-attn", "flash-attn-4", "nvidia-ml-py", "psutil", "textual",
    "gradio", "tensorboard", "trackio", "wandb",
)  # fmt: skip
_VARIABLE_PREFIXES = ("CUDA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "OMP_", "HF_", "SLURM_", "LONGFIT_")


def describe_environment(device: Device, *, argv: tuple[str, ...], variables: Mapping[str, str]) -> dict[str, Any]:
    """``argv``: of the face that launched, for the record."""
    nvml = Nvml()
    gpus = [{"index": gpu.index, "name": gpu.name, "total_bytes": gpu.total_bytes} for gpu in nvml.read()]
    driver = nvml.driver_version()
    nvml.close()
    relevant = {name: value for name, value in variables.items() if name.startswith(_VARIABLE_PREFIXES)}
    return {
        "schema": 1,
        "device": device,
        "packages": {name: found for name in PACKAGES if (found := installed_version(name)) is not None},
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "num_cores": os.cpu_count(),
        "host_memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus,
        "driver": driver,
        "nvml_problem": nvml.problem,
        "source": source_commit(Path(core.__file__).resolve().parents[1]),
        "argv": [redact_text(argument) for argument in argv],
        "variables": redact_environment(relevant),
    }


def installed_version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def source_commit(root: Path) -> dict[str, Any] | None:
    """Commit of a source checkout and whether it was changed; None for an installed package or without git."""
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else {"commit": commit, "is_changed": bool(changes)}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
