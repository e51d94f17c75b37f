"""`longfit runs`: the runs on this disk, newest first."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from app.cli.run_arguments import add_runs_dir
from app.services.locations import default_runs_dir
from app.services.run_summary import last_train_row
from app.services.runs import RunSnapshot, list_runs
from app.views.format import format_duration, format_loss
from planner.errors import ConfigError

_HEAD = ("RUN", "STATE", "STEP", "LOSS", "MODEL", "LENGTH", "AGE")
_LEFT_OUT_FIRST = ("MODEL", "LENGTH", "AGE", "LOSS")  # where a terminal is too narrow
_ID_BEGINNING, _ID_END = 15, 5  # the date and the end, which names the run: what a cut id keeps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs_dir(parser)
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    """0, also without a run; 2 when --runs-dir is no folder."""
    if args.runs_dir is not None and not args.runs_dir.is_dir():
        raise ConfigError(
            f"There is no folder {args.runs_dir}.", why="--runs-dir names the folder that holds the runs' folders.",
            fix="Leave it out for ./runs.",
        )  # fmt: skip
    found = list_runs(args.runs_dir)
    if args.json:
        content = {
            "schema": 1,
            "runs": [run_to_dict(run) for run in found.runs],
            "unreadable": [{"path": str(path), "reason": reason} for path, reason in found.unreadable],
        }
        print(json.dumps(content, indent=1))
        return 0
    rows = [_HEAD, *(_row(run) for run in found.runs)]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(table_lines(rows, columns)))
    for path, reason in found.unreadable:
        print(f"{path.name} cannot be read: {reason}", file=sys.stderr)
    if not found.runs:
        root = (args.runs_dir or default_runs_dir()).absolute()
        print(f"no runs in {root}: longfit train PRESET starts one, --runs-dir looks elsewhere", file=sys.stderr)
    return 0


def table_lines(rows: Sequence[Sequence[str]], columns: int | None) -> list[str]:
    """``rows``: the head first. At most ``columns`` wide where that can be: by fewer columns, then by shorter ids."""
    head = list(rows[0])
    widths = dict(zip(head, (max(map(len, cells)) for cells in zip(*rows, strict=True)), strict=True))
    for name in _LEFT_OUT_FIRST:
        if columns is not None and _width(widths) > columns:
            del widths[name]
    if columns is not None and _width(widths) > columns:
        widths["RUN"] = max(_ID_BEGINNING + 2 + _ID_END, widths["RUN"] - (_width(widths) - columns))
    lines = []
    for row in rows:
        cells = [
            (_cut(cell, widths[name]), widths[name]) for name, cell in zip(head, row, strict=True) if name in widths
        ]
        lines.append("  ".join(cell.ljust(width) for cell, width in cells).rstrip())
    return lines


def _width(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _cut(text: str, width: int) -> str:
    """The middle becomes two dots; only ids are ever too long."""
    return text if len(text) <= width else f"{text[: width - 2 - _ID_END]}..{text[-_ID_END:]}"


def run_to_dict(run: RunSnapshot) -> dict[str, Any]:
    state = run.state
    return {
        "id": run.id,
        "path": str(run.paths.path),
        "name": run.config.name,
        "model": run.config.model,
        "max_length": run.config.max_length,
        "status": state.status,
        "phase": state.phase,
        "step": state.step,
        "total_steps": state.total_steps,
        "loss": last_train_row(run).get("loss"),
        "attempt": state.attempt,
        "failure_kind": state.failure_kind,
        "failure_message": state.failure_message,
        "last_checkpoint": state.last_checkpoint,
        "created_at": state.created_at,
        "updated_at": state.updated_at,
        "supervisor_pid": state.supervisor.pid if state.supervisor is not None and run.is_live else None,
    }


def _row(run: RunSnapshot) -> tuple[str, ...]:
    state = run.state
    status = f"{state.status} ({state.failure_kind})" if state.failure_kind else state.status
    model = run.config.model.rstrip("/").rpartition("/")[2].rpartition("--")[2]  # converted ones: owner--name
    return (
        run.id, status, f"{state.step:,}/{state.total_steps:,}" if state.total_steps else "",
        format_loss(last_train_row(run).get("loss")), model, f"{run.config.max_length:,}",
        format_duration(time.time() - state.created_at),
    )  # fmt: skip
