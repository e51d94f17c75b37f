"""The folder of a rehearsal: what it is asked for and what each rank answers. No torch: the faces read it too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.run.atomic import atomic_write
from planner.types import RunConfig

REQUEST_FILE = "rehearsal.json"


def write_request(folder: Path, *, model_config: Mapping[str, Any], steps: int, limit_bytes: int | None) -> None:
    """``limit_bytes``: the most that a rank may use in all, context included. The run's config lies beside it."""
    request = {"model_config": dict(model_config), "steps": steps, "limit_bytes": limit_bytes}
    atomic_write(folder / REQUEST_FILE, json.dumps(request).encode())


def read_request(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / REQUEST_FILE).read_text("utf-8")))


def packs_last_step(config: RunConfig, steps: int) -> bool:
    """Whether the last row of all holds two samples; its step tells nothing of the speed of whole rows."""
    return config.optimization("packing") is not None and steps > 2


def answer_path(folder: Path, rank: int) -> Path:
    return folder / f"answer.rank{rank}.json"


def read_answers(folder: Path, world: int) -> list[dict[str, Any]]:
    """Of the ranks that answered, in order."""
    paths = [answer_path(folder, rank) for rank in range(world)]
    return [json.loads(path.read_text("utf-8")) for path in paths if path.exists()]
