"""`longfit doctor`: is this installation sound? Exit code 5 when something that is needed is missing or wrong."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from app.services.doctor import run_checks
from planner.errors import EnvironmentProblem

_MARKS = {"ok": "ok", "note": "-", "warning": "warning", "error": "ERROR"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    checks = run_checks()
    num_errors = sum(check.level == "error" for check in checks)
    if args.json:
        answer = {"schema": 1, "ok": not num_errors, "checks": [asdict(check) for check in checks]}
        json.dump(answer, sys.stdout, indent=2)
        print()
    else:
        for check in checks:
            print(f"{_MARKS[check.level]:<8} {check.name}: {check.words}")
            if check.fix and check.level != "note":
                print(f"{'':<9}fix: {check.fix}")
        print("sound" if not num_errors else f"{num_errors} error(s)", file=sys.stderr)
    return EnvironmentProblem.exit_code if num_errors else 0
