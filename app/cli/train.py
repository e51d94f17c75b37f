"""`longfit train`: plan for this machine, prepare the data, launch, watch. Ctrl-C detaches, the run goes on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.cli.attach import watch
from app.cli.planning_arguments import add_planning_arguments, overrides_of
from app.cli.reading_line import ReadingLine
from app.cli.run_arguments import add_runs_dir
from app.services.launch import launch_planned, plan_for_launch, refuse_what_does_not_fit
from app.services.planning import Planned
from app.views.data_report import data_summary
from app.views.plan_view import (
    batch_words,
    cluster_words,
    combination_of,
    issue_lines,
    peak_words,
    speed_words,
    verdict_view,
)
from planner.errors import ConfigError
from planner.price import ROOMY
from planner.types import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_planning_arguments(parser)
    add_runs_dir(parser)
    add_launch_arguments(parser)


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `train` and `sft`."""
    parser.add_argument("--detach", action="store_true", help="return as soon as the run is under way")
    parser.add_argument("--yes", action="store_true", help="do not ask when the plan is tight")
    parser.add_argument("--force", action="store_true", help="launch although the plan says that it does not fit")
    parser.add_argument("--json", action="store_true", help="the final summary as JSON; the run's folder with --detach")


def run(args: argparse.Namespace) -> int:
    """0 done or stopped, 1 failed, 2 bad input, 3 does not fit, 4 out of memory, 5 environment, 130 detached."""
    planned = plan_for_launch(args.preset, overrides_of(args), gpu=args.gpu)
    return train_planned(planned, args, runs_root=args.runs_dir)


def train_planned(planned: Planned, args: argparse.Namespace, *, runs_root: Path | None) -> int:
    """Show the plan, launch and watch; `args` has what add_launch_arguments added. The exit codes of ``run``."""
    _say(plan_summary(planned.plan))
    if not args.force:
        refuse_what_does_not_fit(planned.plan)
    if planned.plan.verdict not in ROOMY and not args.yes:
        _ask_to_go_on(planned.plan)
    with ReadingLine() as line:

        def tell(report: Mapping[str, Any]) -> None:
            line.clear()
            _say(data_summary(report))

        paths = launch_planned(planned, runs_root=runs_root, on_progress=line, on_data=tell)
    _say(f"run {paths.id} in {paths.path}")
    if args.detach:
        print(paths.path)
        return 0
    return watch(paths, as_json=args.json)


def plan_summary(plan: Plan) -> str:
    """The plan in a few lines; `longfit plan` tells all of it."""
    view = verdict_view(plan)
    lines = [
        f"{plan.config.name} on {cluster_words(plan)}",
        f"  {combination_of(plan)}",
        f"  {batch_words(plan)}",
        f"  {view.word}: {view.sentence}; {peak_words(plan)}",
        f"  {speed_words(plan)}",
        *(f"  {severity}: {words}" for severity, words in issue_lines(plan.issues)),
    ]
    return "\n".join(lines)


def _ask_to_go_on(plan: Plan) -> None:
    """Only a person at a terminal is asked. Raises: ConfigError when the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print(f"The plan is {plan.verdict}. Launch all the same? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("Nothing was launched.", fix="Change the preset, or answer y (or give --yes).")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
