"""`longfit plan`: the plan of a preset, as text or JSON."""

from __future__ import annotations

import argparse
import json
import sys

from app.cli.planning_arguments import add_planning_arguments, overrides_of
from app.services.hardware import parse_cluster
from app.services.planning import plan_preset, refuse_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_planning_arguments(parser)
    parser.add_argument("--json", action="store_true", help="machine-readable, see planner/plan.schema.json")
    parser.add_argument("--explain", action="store_true", help="every term with its formula")


def run(args: argparse.Namespace) -> int:
    """0 fits or is tight, 2 bad input, 3 does not fit."""
    cluster = parse_cluster(args.gpu) if args.gpu else None
    planned = plan_preset(args.preset, overrides_of(args), cluster=cluster, alternatives=True)
    refuse_errors(planned.plan)
    if args.json:
        from planner.plan_json import plan_to_dict

        json.dump(plan_to_dict(planned.plan), sys.stdout, indent=2)
        print()
    else:
        from app.views.text import plan_text

        print(plan_text(planned.plan, explain=args.explain))
    return 3 if planned.plan.verdict == "over" else 0
