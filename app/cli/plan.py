"""`longfit plan`: the plan of a preset, as text or JSON."""

from __future__ import annotations

import argparse
import json
import sys

from app.cli.planning_arguments import (
    add_goal,
    add_memory_limit,
    add_planning_arguments,
    cluster_of,
    overrides_of,
)
from app.services.calibration import measured_used
from app.services.planning import ladder_for, plan_preset, refuse_errors, refuse_length
from app.services.terminal import prefers_ascii
from planner.types import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_planning_arguments(parser)
    add_memory_limit(parser)
    add_goal(parser)
    parser.add_argument("--ladder", action="store_true", help="what each optimization changes, one after the other")
    parser.add_argument("--json", action="store_true", help="machine-readable, see planner/plan.schema.json")
    parser.add_argument("--explain", nargs="?", const="all", metavar="PART", help="the numbers behind a part, a term,"
                        " an instant, host or disk; all of the peak without a name")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """0 fits or is tight, 2 bad input, 3 does not fit."""
    if args.ladder:
        return _print_ladder(args)
    planned = plan_preset(
        args.preset, overrides_of(args), cluster=cluster_of(args), alternatives=True, goal=args.goal
    )  # fmt: skip
    refuse_errors(planned.plan)
    if args.explain is not None and args.explain != "all":
        _print_explained(planned.plan, args.explain, as_json=args.json)
    elif args.json:
        from planner.plan_json import plan_to_dict

        json.dump(plan_to_dict(planned.plan), sys.stdout, indent=2)
        print()
    else:
        from app.views.text import plan_text

        ascii_only = prefers_ascii()
        print(plan_text(planned.plan, goal=args.goal, explain=args.explain is not None, ascii_only=ascii_only))
    return 3 if planned.plan.verdict == "over" else 0


def _print_explained(plan: Plan, what: str, *, as_json: bool) -> None:
    from app.views.explain_view import explain_dict, explain_text

    if as_json:
        json.dump(explain_dict(plan, what), sys.stdout, indent=2)
        print()
    else:
        print(explain_text(plan, what))


def _print_ladder(args: argparse.Namespace) -> int:
    """0 when a rung that can be run fits, 3 when none does."""
    from app.views.ladder_view import ladder_dict, ladder_text

    planned = plan_preset(args.preset, overrides_of(args), cluster=cluster_of(args))
    refuse_length(planned.plan)  # what else is wrong with the preset's own combination is no matter of the ladder's
    ladder, measured = ladder_for(planned.resolved), measured_used(planned.resolved.cluster)
    if args.json:
        json.dump(ladder_dict(planned.plan, ladder, measured), sys.stdout, indent=2)
        print()
    else:
        print(ladder_text(planned.plan, ladder, measured=measured))
    return 0 if ladder.first_that_fits is not None else 3
