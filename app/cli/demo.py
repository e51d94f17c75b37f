"""`longfit demo`: the whole product on a real small model, watched, in minutes; exit code 1 unless it kept its word."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from app.cli.attach import exit_code, follow, summary_text
from app.cli.run_arguments import add_runs_dir
from app.cli.train import plan_summary
from app.services.demo import QUESTION, demo_checks, launch_demo, plan_demo
from app.services.run_summary import summarize
from app.services.runs import snapshot
from app.tui.start import can_show, run_tui_for_run
from core.run.directory import RunDirectory
from core.run.interpreter import child_environment, python_argv
from planner.types import FINAL_STATUSES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs_dir(parser)
    parser.add_argument("--plain", action="store_true", help="progress lines instead of the terminal interface")


def run(args: argparse.Namespace) -> int:
    """0 when the run ended well, the held-out loss fell and the memory was as planned; else 1."""
    planned = plan_demo(_say)
    _say(plan_summary(planned.plan))
    paths = launch_demo(planned, args.runs_dir)
    _say(f"run {paths.id} in {paths.path}")
    if can_show() and not args.plain:
        run_tui_for_run(paths.path, exit_when_final=True)
    else:
        follow(paths)
    ended = snapshot(paths)
    if ended.state.status not in FINAL_STATUSES:
        _say(f"detached: the run goes on. longfit attach {paths.id} | longfit stop {paths.id}")
        return 130
    summary = summarize(ended)
    print(summary_text(summary))
    if exit_code(ended.state):
        _say(f"longfit logs {paths.id} shows its log.")
        return 1
    answered = _answer(paths)
    checks = demo_checks(summary, num_processes=planned.plan.config.parallel.world)
    for check in checks:
        print(f"{'ok    ' if check.passed else 'FAILED'}  {check.words}")
    return 0 if answered and all(check.passed for check in checks) else 1


def _answer(paths: RunDirectory) -> bool:
    """The trained adapter answers a question, streamed to stdout."""
    print(f"\n> {QUESTION}", flush=True)
    command = python_argv("-m", "core.infer", "--run", str(paths.path), "--prompt", QUESTION, "--max-new-tokens", "64")
    done = subprocess.run(command, env=child_environment(os.environ), check=False)
    print(flush=True)
    return done.returncode == 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
