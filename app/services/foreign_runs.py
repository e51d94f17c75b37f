"""Output folders of other trainers, read as a run's metric rows: a loss can be looked at wherever it was trained.

LLaMA-Factory writes trainer_log.jsonl, ms-swift logging.jsonl, every Hugging Face Trainer (axolotl, TRL) a
trainer_state.json beside each checkpoint. Only what they have logged is known: no plan, no memory, no processes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.run.jsonl import JsonlTail
from planner.errors import ConfigError, RunNotFound

_LOG_NAMES = ("running_log.txt", "train.log", "run.log", "runs.log")
_CLOCK = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d)")  # 1 day, 2:03:04
_UNITS = re.compile(r"(\d+)([dhms])")  # 1h 2m 3s
_UNIT_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


@dataclass(slots=True)
class ForeignRun:
    """``read`` gives the rows since the last call, in the words of metrics.jsonl."""

    folder: Path
    trainer: str
    log: Path | None
    total_steps: int = 0
    step: int = 0
    _read: Callable[[], list[Mapping[str, Any]]] = field(repr=False, default=list)
    _translate: Callable[[Mapping[str, Any]], dict[str, Any]] = field(repr=False, default=dict)
    _tokens: int = 0
    _seconds: float = 0.0

    def read(self) -> list[dict[str, Any]]:
        """Rows with a loss or an eval_loss; tokens and seconds are those since the row before."""
        return [row for raw in self._read() if (row := self._row(raw)) is not None]

    def _row(self, raw: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            row = self._translate(raw)
        except (TypeError, ValueError, KeyError):
            return None  # a line of another kind
        if "loss" not in row and "eval_loss" not in row:
            return None
        self.total_steps = max(self.total_steps, row.pop("total_steps", 0))
        self.step = max(self.step, row["step"])
        tokens, seconds = row.pop("tokens_seen", None), row.pop("elapsed", None)
        if "loss" in row and tokens is not None:
            row["tokens"], self._tokens = max(0, tokens - self._tokens), tokens
        if "loss" in row and seconds is not None:
            row["seconds"], self._seconds = max(0.0, seconds - self._seconds), seconds
        return row


def open_foreign(folder: Path) -> ForeignRun:
    """Raises: RunNotFound when the folder has no log of a trainer that is known, ConfigError when it cannot be read."""
    log = next((folder / name for name in _LOG_NAMES if (folder / name).is_file()), None)
    for name, trainer, translate in (
        ("trainer_log.jsonl", "LLaMA-Factory", _of_llamafactory),
        ("logging.jsonl", "ms-swift", _of_swift),
    ):
        if (folder / name).is_file():
            tail = JsonlTail(folder / name)
            return ForeignRun(folder, trainer, log, _read=tail.read, _translate=translate)
    state = _newest_state(folder)
    if state is None:
        raise RunNotFound(
            f"{folder} is no run that can be read.",
            why="It has no run.yaml, trainer_log.jsonl, logging.jsonl or trainer_state.json.",
            fix="Give the folder that a trainer writes to: its output_dir.",
        )
    reader = _StateReader(folder)
    reader.read_total()
    return ForeignRun(
        folder, "Hugging Face Trainer", log, reader.total_steps, _read=reader.read, _translate=_of_trainer
    )  # fmt: skip


@dataclass(slots=True)
class _StateReader:
    """Each trainer_state.json has the history of all steps so far: of a newer one, what is new is told."""

    folder: Path
    total_steps: int = 0
    _num_told: int = 0
    _seen: tuple[Path, int] | None = None

    def read_total(self) -> None:
        """Raises: ConfigError when the file is damaged."""
        path = _newest_state(self.folder)
        assert path is not None
        try:
            self.total_steps = int(json.loads(path.read_text("utf-8")).get("max_steps") or 0)
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path} cannot be read.", why=f"{error}.") from error

    def read(self) -> list[Mapping[str, Any]]:
        path = _newest_state(self.folder)
        if path is None or (path, path.stat().st_mtime_ns) == self._seen:
            return []
        try:
            history = json.loads(path.read_text("utf-8"))["log_history"]
        except (OSError, ValueError, KeyError, TypeError):
            return []  # being written: the next look finds it whole
        self._seen = (path, path.stat().st_mtime_ns)
        new, self._num_told = history[self._num_told :], max(self._num_told, len(history))
        return [row for row in new if isinstance(row, Mapping)]


def _newest_state(folder: Path) -> Path | None:
    found = [*folder.glob("trainer_state.json"), *folder.glob("checkpoint-*/trainer_state.json")]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def _of_llamafactory(raw: Mapping[str, Any]) -> dict[str, Any]:
    row = {"step": int(raw["current_steps"]), "total_steps": int(raw.get("total_steps") or 0)}
    row |= _numbers(raw, loss="loss", eval_loss="eval_loss", learning_rate="lr", epoch="epoch",
                    tokens_per_second="throughput", tokens_seen="total_tokens")  # fmt: skip
    return row | _elapsed(raw)


def _of_swift(raw: Mapping[str, Any]) -> dict[str, Any]:
    step, _, total = str(raw["global_step/max_steps"]).partition("/")
    row = {"step": int(step), "total_steps": int(total or 0)}
    row |= _numbers(raw, loss="loss", eval_loss="eval_loss", learning_rate="learning_rate", grad_norm="grad_norm",
                    epoch="epoch")  # fmt: skip
    return row | _elapsed(raw)


def _of_trainer(raw: Mapping[str, Any]) -> dict[str, Any]:
    names = ("loss", "eval_loss", "learning_rate", "grad_norm", "epoch")
    row = {"step": int(raw["step"]), **_numbers(raw, **{name: name for name in names})}
    return row | _numbers(raw, tokens_seen="num_input_tokens_seen")


def _numbers(raw: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """Our name -> theirs; what is there and a number, texts of numbers included."""
    found: dict[str, Any] = {}
    for ours, theirs in names.items():
        value = raw.get(theirs)
        if value is not None:
            number = float(value)
            found[ours] = int(number) if ours == "tokens_seen" else number
    return found


def _elapsed(raw: Mapping[str, Any]) -> dict[str, float]:
    text = str(raw.get("elapsed_time") or "")
    if match := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return {"elapsed": float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)}
    parts = _UNITS.findall(text)
    return {"elapsed": float(sum(int(count) * _UNIT_SECONDS[unit] for count, unit in parts))} if parts else {}
