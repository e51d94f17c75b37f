"""How far a run is: what the trainer counts and a checkpoint's trainer_state.json holds. Torch-free."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from core.train.loss_scale import LossScale
from core.train.windows import Position

STATE_FILE = "trainer_state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Totals over all ranks since the last logged row."""

    loss: float = 0.0  # summed over targets, not a mean
    num_targets: int = 0
    tokens: int = 0  # real tokens, padding not counted
    seconds: float = 0.0

    def plus(self, other: Sums) -> Sums:
        return Sums(
            loss=self.loss + other.loss,
            num_targets=self.num_targets + other.num_targets,
            tokens=self.tokens + other.tokens,
            seconds=self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    step: int
    eval_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    step: int = 0  # optimizer steps taken
    position: Position = field(default_factory=Position)  # where the next one starts
    epochs_done: float = 0.0
    tokens_seen: int = 0
    unlogged: Sums = field(default_factory=Sums)
    best: Best | None = None  # lowest evaluation loss after at least one step
    loss_scale: LossScale | None = None  # float16 only
    evaluated_step: int = -1  # when the last evaluation was
    saved_step: int = -1  # when the last checkpoint was


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a checkpoint comes from: what must be equal for the resumed loss curve to be the uninterrupted one."""

    config_hash: str
    world: int
    device: str  # "cpu", or the name of the GPU
    deterministic: bool  # CPU, or a GPU with `deterministic: true`
    versions: Mapping[str, str]

    def differences(self, now: Origin) -> tuple[str, ...]:
        """Why a run with origin ``now`` cannot continue this checkpoint bit for bit; empty when it can."""
        reasons = []
        if self.config_hash != now.config_hash:
            reasons.append(f"the resolved config changed ({self.config_hash} -> {now.config_hash})")
        if self.world != now.world:
            reasons.append(f"{self.world} processes saved it, {now.world} continue")
        if self.device != now.device:
            reasons.append(f"saved on {self.device}, continued on {now.device}")
        if not (self.deterministic and now.deterministic):
            reasons.append("GPU kernels run without `deterministic: true`")
        for name in sorted({*self.versions, *now.versions}):
            before, after = self.versions.get(name, "absent"), now.versions.get(name, "absent")
            if before != after:
                reasons.append(f"{name} {before} -> {after}")
        return tuple(reasons)


def installed_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "peft", "bitsandbytes"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def write_state(directory: Path, progress: Progress, origin: Origin, scheduler: Mapping[str, Any]) -> None:
    """``scheduler`` is for readers: the schedule is a function of the step and holds no state. JSON keeps every bit of
    a float, so that the sums continue exactly."""
    document = {"schema": 1, "progress": asdict(progress), "origin": asdict(origin), "scheduler": dict(scheduler)}
    (directory / STATE_FILE).write_text(json.dumps(document, indent=1) + "\n")


def read_state(directory: Path) -> tuple[Progress, Origin]:
    document = json.loads((directory / STATE_FILE).read_text())
    saved = document["progress"]
    best, loss_scale = saved["best"], saved["loss_scale"]
    progress = Progress(
        **saved
        | {
            "position": Position(**saved["position"]),
            "unlogged": Sums(**saved["unlogged"]),
            "best": None if best is None else Best(**best),
            "loss_scale": None if loss_scale is None else LossScale(**loss_scale),
        }
    )
    return progress, Origin(**document["origin"])
