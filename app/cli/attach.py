"""`longfit attach`: follow a run, on a terminal in the terminal interface, else line by line until it ends.

train and resume end in the same watch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from app.cli.run_arguments import add_run_arguments, run_of
from app.services.run_summary import RunSummary, summarize
from app.services.runs import RunFollower, RunUpdate, snapshot
from app.views.format import (
    format_bytes,
    format_clock,
    format_deviation,
    format_duration,
    format_learning_rate,
    format_loss,
    format_tokens_per_second,
)
from app.views.run_view import event_lines, failure_text
from core.run.directory import RunDirectory
from planner.types import FINAL_STATUSES, RunEvent, RunState

_POLL_SECONDS = 0.25
_PASSING_PHASES = frozenset({"train", "evaluate", "save"})
_LINE_SECONDS = 1.0  # step lines come no closer than this
_FAILURE_EXIT_CODES = {"oom": 4, "data": 2, "environment": 5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the final summary as JSON")
    parser.add_argument("--plain", action="store_true", help="lines of text also on a terminal")


def run(args: argparse.Namespace) -> int:
    from app.tui.start import can_show

    paths = run_of(args)
    return show(paths) if can_show() and not args.json and not args.plain else watch(paths, as_json=args.json)


def show(paths: RunDirectory) -> int:
    """The run in the terminal interface; then, if it has ended, what came of it and its exit code."""
    from app.tui.start import run_tui_for_run

    code = run_tui_for_run(paths.path)
    found = snapshot(paths)
    if code or found.state.status not in FINAL_STATUSES:
        return code
    print(summary_text(summarize(found)))
    return exit_code(found.state)


def watch(paths: RunDirectory, *, as_json: bool = False) -> int:
    """Progress on stderr, the summary on stdout once the run has ended; its exit code. Ctrl-C leaves the run alone."""
    try:
        state = follow(paths)
    except KeyboardInterrupt:
        _say(f"\ndetached: the run goes on. longfit attach {paths.id} | longfit stop {paths.id}")
        return 130
    found = snapshot(paths)
    if state.status in ("failed", "lost"):
        _say("\n" + failure_text(state, paths.read_json(paths.postmortem)))
        _say(f"\nlongfit resume {paths.id} continues it, longfit logs {paths.id} shows its log.")
    summary = summarize(found)
    if as_json:
        print(json.dumps(summary.to_dict(), indent=1))
    else:
        print(summary_text(summary))
    return exit_code(state)


def exit_code(state: RunState) -> int:
    """Of the process, for a run that has ended."""
    if state.status == "lost":
        return 6
    return _FAILURE_EXIT_CODES.get(state.failure_kind, 1) if state.status == "failed" else 0


def summary_text(summary: RunSummary) -> str:
    steps = f"step {summary.step:,} of {summary.total_steps:,}" if summary.total_steps else "before its first step"
    lines = [f"{summary.status}: {steps}"]
    if summary.last_loss is not None:
        lines.append(f"loss            {format_loss(summary.first_loss)} -> {format_loss(summary.last_loss)}")
    if summary.last_eval_loss is not None:
        first, last = format_loss(summary.first_eval_loss), format_loss(summary.last_eval_loss)
        lines.append(f"held-out loss   {first} -> {last}")
    if summary.tokens_per_second is not None:
        planned = summary.planned_tokens_per_second
        words = f", planned {format_tokens_per_second(planned)}" if planned else ""
        lines.append(f"speed           {format_tokens_per_second(summary.tokens_per_second)}{words}")
    for peak in summary.peaks:
        words = f"memory rank {peak.rank:<3} {format_bytes(peak.measured_bytes)}"
        if peak.planned_bytes:
            deviation = format_deviation(peak.measured_bytes, peak.planned_bytes)
            words += f", planned {format_bytes(peak.planned_bytes)} ({deviation})"
        lines.append(words)
    if summary.last_checkpoint:
        lines.append(f"checkpoint      {summary.last_checkpoint}")
    lines.append(f"run             {summary.path}")
    return "\n".join(lines)


def position_words(row: Mapping[str, Any]) -> str:
    """``, at 0-1,024 1.3000, 1,024-2,048 1.2000``: the held-out loss by context, when samples are long enough."""
    buckets = row.get("eval_loss_by_position") or []
    if len(buckets) < 2:
        return ""
    return ", at " + ", ".join(f"{b['begin']:,}-{b['end']:,} {format_loss(b['loss'])}" for b in buckets)


def step_line(row: Mapping[str, Any], state: RunState, *, logging_steps: int) -> str:
    """One row of metrics.jsonl as a line; a row stands for ``logging_steps`` steps."""
    clock, total = format_clock(float(row["time"])), f"/{state.total_steps:,}" if state.total_steps else ""
    where = f"{clock} step {row['step']:,}{total}"
    if "eval_loss" in row:
        return f"{where}  held-out loss {format_loss(row['eval_loss'])}{position_words(row)}"
    words = [where, f"loss {format_loss(row.get('loss'))}", f"lr {format_learning_rate(row.get('learning_rate'))}"]
    if row.get("tokens_per_second"):
        words.append(format_tokens_per_second(float(row["tokens_per_second"])))
    left = state.total_steps - int(row["step"])
    if row.get("seconds") and left > 0:
        words.append(f"{format_duration(left * float(row['seconds']) / logging_steps)} left")
    return "  ".join(words)


def follow(paths: RunDirectory) -> RunState:
    """Progress lines on stderr until the run has ended; how it ended."""
    logging_steps = snapshot(paths).config.logging_steps
    follower = RunFollower(paths)
    update = follower.read()
    last_line = _tell(update, _of_last_attempt(update.events), 0.0, logging_steps)
    while update.state.status not in FINAL_STATUSES:
        time.sleep(_POLL_SECONDS)
        update = follower.read()
        last_line = _tell(update, update.events, last_line, logging_steps)
    return update.state


def _of_last_attempt(events: Sequence[RunEvent]) -> Sequence[RunEvent]:
    starts = [index for index, event in enumerate(events) if event.type == "supervisor"]
    return events[starts[-1] :] if starts else events


def _tell(update: RunUpdate, events: Sequence[RunEvent], last_line: float, logging_steps: int) -> float:
    """Events as they come; of the metric rows those with an evaluation and, once a second, the newest. By time."""
    lines = [(event.time, words) for event in events if not _is_told_otherwise(event) for words in event_lines([event])]
    now = time.monotonic()
    rows = [row for row in update.metrics if "step" in row and "time" in row]
    for index, row in enumerate(rows):
        is_newest = index == len(rows) - 1
        if "eval_loss" in row or (is_newest and now - last_line >= _LINE_SECONDS):
            lines.append((float(row["time"]), step_line(row, update.state, logging_steps=logging_steps)))
            last_line = now
    for _, line in sorted(lines, key=lambda timed: timed[0]):
        _say(line)
    return last_line


def _is_told_otherwise(event: RunEvent) -> bool:
    """An evaluation by its metric row, a save by its checkpoint."""
    return event.type == "evaluation" or (event.type == "phase" and event.data.get("name") in _PASSING_PHASES)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
