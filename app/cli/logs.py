"""`longfit logs`: what the workers of a run printed."""

from __future__ import annotations

import argparse
import time

from app.cli.parser import whole_number
from app.cli.run_arguments import add_run_arguments, run_of
from app.services.runs import observed_state
from core.run.directory import RunDirectory
from core.run.log_tail import LogTail
from planner.types import FINAL_STATUSES

_POLL_SECONDS = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument("-n", "--lines", type=whole_number, metavar="N", help="only the last N lines of what is there")
    parser.add_argument("--supervisor", action="store_true", help="the supervisor's own log, empty when all is well")


def run(args: argparse.Namespace) -> int:
    """0; with -f 130 when interrupted."""
    paths = run_of(args)
    tail = LogTail(paths.supervisor_log if args.supervisor else paths.log)
    lines: list[str] = []
    while more := tail.read():
        lines += more
        if args.lines is not None:
            lines = lines[-args.lines :] if args.lines > 0 else []
    for line in lines:
        print(line)
    if args.follow:
        _follow(paths, tail)
    if tail.unfinished:
        print(tail.unfinished)
    return 0


def _follow(paths: RunDirectory, tail: LogTail) -> None:
    while True:
        has_ended = observed_state(paths).status in FINAL_STATUSES  # before the read: nothing comes after it
        lines = tail.read()
        for line in lines:
            print(line, flush=True)
        if has_ended and not lines:
            return
        if not lines:
            time.sleep(_POLL_SECONDS)
