"""The arguments that name a run, shared by attach, stop, resume and logs."""

from __future__ import annotations

import argparse
from pathlib import Path

from app.services.runs import find_run
from core.run.directory import RunDirectory


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs-dir", type=Path, metavar="DIR", help="where runs lie (LONGFIT_RUNS, else ./runs)")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN", help="a run's id, the beginning or end of it, its folder, or 'last'")
    add_runs_dir(parser)


def run_of(args: argparse.Namespace) -> RunDirectory:
    return find_run(args.run_id, args.runs_dir)
