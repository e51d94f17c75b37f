"""What a run has trained, and what it was trained from: the one answer of `infer` and `export`. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.run.config_file import read_config
from core.run.directory import RunDirectory, open_run
from core.train.checkpoint import newest_valid, problem_with, saved_steps, step_path
from planner.errors import ConfigError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILE = "adapter_model.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "tokenizer.model", "vocab.json", "merges.txt",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What to load."""

    model: str  # folder or hub id
    adapter: Path | None = None
    dtype: str = "auto"  # "auto": as the weights were saved
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)
    max_length: int = 0  # of the training, for dynamic RoPE; 0: as the model says


def source_of_run(run_dir: Path, *, step: int | None = None, use_base: bool = False) -> Source:
    """The newest valid checkpoint of a run, or that of ``step``, or the model before the training.

    Raises: ConfigError when there is no such checkpoint or it is damaged, RunNotFound.
    """
    directory = open_run(run_dir)
    config = read_config(directory.path)
    otherwise = ", or answer with the untrained model: --base"
    checkpoint = None if use_base else find_checkpoint(directory, step, otherwise=otherwise)
    common: dict[str, Any] = {"dtype": config.dtype, "max_length": config.max_length}
    if checkpoint is not None and not is_adapter(checkpoint):
        return Source(model=str(checkpoint), **common)  # a whole model: its config.json has the scaled RoPE
    return Source(model=config.model, adapter=checkpoint, rope_scaling=dict(config.rope_scaling), **common)


def find_checkpoint(directory: RunDirectory, step: int | None = None, *, otherwise: str = "") -> Path:
    """The newest valid checkpoint, or that of ``step``; every byte of it was read. ``otherwise`` ends the advice.

    Raises: ConfigError when there is none or it is damaged.
    """
    checkpoint = newest_valid(directory.checkpoints).path if step is None else step_path(directory.checkpoints, step)
    if checkpoint is None or not checkpoint.is_dir():
        steps = [f"step-{saved}" for saved in sorted(saved_steps(directory.checkpoints))]
        wanted = "valid checkpoint" if step is None else f"checkpoint of step {step}"
        advice = "Take one of these" if steps and step is not None else "Wait for its first checkpoint"
        raise ConfigError(
            f"The run {directory.id} has no {wanted}.", why=f"It holds {', '.join(steps) or 'none'}.",
            fix=f"{advice}{otherwise}.",
        )  # fmt: skip
    if step is not None and (problem := problem_with(checkpoint)) is not None:
        raise ConfigError(f"The checkpoint {checkpoint} cannot be used.", why=f"{problem}.", fix="Choose another step.")
    return checkpoint


def is_adapter(checkpoint: Path) -> bool:
    """Whether it holds an adapter; else it holds a whole model."""
    return (checkpoint / ADAPTER_CONFIG).is_file()
