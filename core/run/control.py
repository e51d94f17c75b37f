"""control/: a command to a run is one file, renamed in by a face, taken by the supervisor, acknowledged by an event."""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

StopMode = Literal["save", "now", "kill"]
STOP_MODES: tuple[StopMode, ...] = get_args(StopMode)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopCommand:
    id: str
    mode: StopMode


def submit_stop(control: Path, mode: StopMode) -> str:
    """Put a stop command into ``control``; its id is what the `acknowledged` event will carry."""
    command_id = f"{time.time_ns()}-{secrets.token_hex(2)}"
    temporary = control / f".tmp-{command_id}"
    temporary.write_text(json.dumps({"command": "stop", "mode": mode}) + "\n", encoding="utf-8")
    os.rename(temporary, control / f"{command_id}.json")
    return command_id


def take_commands(control: Path) -> tuple[tuple[StopCommand, ...], tuple[str, ...]]:
    """Remove what lies there, oldest first: (commands, what could not be understood)."""
    commands: list[StopCommand] = []
    problems: list[str] = []
    try:
        paths = sorted(path for path in control.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
    except FileNotFoundError:
        return (), ()
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["command"] != "stop" or content["mode"] not in STOP_MODES:
                raise ValueError(f"no such command: {content}")
            commands.append(StopCommand(id=path.stem, mode=content["mode"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{path.name}: {error}")
        path.unlink(missing_ok=True)
    return tuple(commands), tuple(problems)
