"""`longfit postmortem`: why a run failed, in words or as its postmortem.json."""

from __future__ import annotations

import argparse
import json
import sys

from app.cli.run_arguments import add_run_arguments, run_of
from app.services.runs import observed_state
from app.views.run_view import failure_text, status_view


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--json", action="store_true", help="machine-readable; {} for a run that has not failed")


def run(args: argparse.Namespace) -> int:
    """0, also for a run that has not failed."""
    paths = run_of(args)
    state = observed_state(paths)
    known = paths.read_json(paths.postmortem) if state.status == "failed" else {}
    if args.json:
        print(json.dumps(known, indent=1))
    elif text := failure_text(state, known):
        print(text)
    else:
        view = status_view(state)
        print(f"{paths.id} has not failed; {view.word}: {view.detail}", file=sys.stderr)
    return 0
