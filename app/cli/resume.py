"""`longfit resume`: go on with a stopped, failed or lost run from its newest valid checkpoint."""

from __future__ import annotations

import argparse
import sys

from app.cli.attach import watch
from app.cli.run_arguments import add_run_arguments, run_of
from app.services.launch import resume


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--detach", action="store_true", help="return as soon as the run is under way")
    parser.add_argument("--json", action="store_true", help="the final summary as JSON")


def run(args: argparse.Namespace) -> int:
    paths = resume(run_of(args))
    print(f"run {paths.id} goes on", file=sys.stderr)
    if args.detach:
        print(paths.path)
        return 0
    return watch(paths, as_json=args.json)
