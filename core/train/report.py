"""Where metric rows go besides metrics.jsonl: TensorBoard, Trackio, Weights & Biases. Called by worker and trainer.

Each package is imported when asked for, never before. Rank 0 alone reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from planner.errors import ConfigError

PROJECT = "longfit"


class Reporter(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files under RUN_DIR/tensorboard; a resumed run adds a file to them."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any], first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step hides what an earlier attempt wrote beyond the checkpoint that this one continues from.
        self._writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=first_step + 1 if first_step else None)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Trackio:
    def __init__(self, run_dir: Path, config: Mapping[str, Any], first_step: int) -> None:
        import trackio

        self._trackio = trackio
        trackio.init(project=PROJECT, name=run_dir.name, config=dict(config), resume="allow")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        self._trackio.finish()


class WeightsAndBiases:
    def __init__(self, run_dir: Path, config: Mapping[str, Any], first_step: int) -> None:
        import wandb

        self._run = wandb.init(
            project=PROJECT, id=run_dir.name, name=run_dir.name, config=dict(config), dir=str(run_dir), resume="allow"
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


REPORTERS: dict[str, Callable[[Path, Mapping[str, Any], int], Reporter]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
}


def require_reporters(names: Sequence[str]) -> None:
    """Before anything is loaded. Raises: ConfigError for an unknown name or a package that is not installed."""
    for name in names:
        if name not in REPORTERS:
            raise ConfigError(
                f"report_to: {name!r} is not known.",
                why=f"Known are {', '.join(REPORTERS)}.",
                fix="Choose one of them.",
            )
        if find_spec(name) is None:
            raise ConfigError(
                f"report_to: {name} is asked for, but the package {name} is not installed.",
                fix=f"pip install {name}, or remove it from report_to; metrics.jsonl is always written.",
            )


class Reports:
    """All reporters of a run. One that fails (network, disk, login) is told about and left out: training goes on."""

    def __init__(
        self,
        names: Sequence[str],
        run_dir: Path,
        config: Mapping[str, Any],
        *,
        first_step: int,
        warn: Callable[[str], None],
    ) -> None:
        self._warn = warn
        self._open: dict[str, Reporter] = {}
        for name in names:
            self._try(name, lambda name=name: self._open.update({name: REPORTERS[name](run_dir, config, first_step)}))

    def log(self, row: Mapping[str, Any]) -> None:
        """The numbers of a row of metrics.jsonl."""
        values = {f"train/{key}" if key != "eval_loss" else "eval/loss": value for key, value in row.items()
                  if key not in ("step", "time") and isinstance(value, int | float)}  # fmt: skip
        for name, reporter in list(self._open.items()):
            self._try(name, lambda reporter=reporter: reporter.log(row["step"], values))

    def close(self) -> None:
        for name, reporter in list(self._open.items()):
            self._try(name, reporter.close)
        self._open.clear()

    def _try(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever a third party's logger raises, it must not end the training
            self._open.pop(name, None)
            self._warn(f"{name} no longer gets this run's metrics: {type(error).__name__}: {error}")
