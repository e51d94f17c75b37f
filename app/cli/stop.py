"""`longfit stop`: save and stop a run, or end it at once; waits until nobody is left."""

from __future__ import annotations

import argparse
import sys

from app.cli.run_arguments import add_run_arguments, run_of
from app.services.control import kill_leftovers, stop, wait_for_end
from app.services.runs import observed_state
from app.views.run_view import status_view
from core.run.control import StopMode
from planner.errors import LaunchError
from planner.types import FINAL_STATUSES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--now", action="store_true", help="SIGTERM, and SIGKILL ten seconds later; nothing is saved")
    how.add_argument("--kill", action="store_true", help="SIGKILL at once; also ends what a lost run left behind")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="wait no longer than this")


def run(args: argparse.Namespace) -> int:
    """0 when the run has ended. Ctrl-C stops waiting; the request stays."""
    paths = run_of(args)
    mode: StopMode = "kill" if args.kill else "now" if args.now else "save"
    if mode == "kill" and observed_state(paths).status in FINAL_STATUSES:
        pids = kill_leftovers(paths)
        print(f"{paths.id}: {len(pids)} left-over processes ended" + (f", pid {pids}" if pids else ""), file=sys.stderr)
        return 0
    stop(paths, mode)
    words = {
        "save": "will save at its next step and stop; `longfit stop` once more does not wait for that",
        "now": "is being stopped; `longfit stop` once more kills it",
        "kill": "is being killed",
    }
    print(f"{paths.id} {words[mode]}", file=sys.stderr)
    state = wait_for_end(paths, timeout_seconds=args.timeout)
    if state.status not in FINAL_STATUSES:
        raise LaunchError(
            f"{paths.id} has not ended within {args.timeout:.0f} s.",
            why=f"It is {state.status}, at step {state.step}.",
            fix=f"`longfit stop {paths.id} --now` does not wait for the step, --kill waits for nothing.",
        )  # fmt: skip
    view = status_view(state)
    print(f"{view.word}: {view.detail}")
    return 0
