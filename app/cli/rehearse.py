"""`longfit rehearse`: the plan of a preset against what this machine really holds, without a download."""

from __future__ import annotations

import argparse
import json
import sys

from app.cli.parser import whole_number
from app.cli.planning_arguments import add_planning_arguments, overrides_of
from app.services.hardware import parse_bytes
from app.services.rehearse import limit_of_gpu, rehearse_preset
from app.views.rehearsal_view import rehearsal_dict, rehearsal_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_planning_arguments(parser)
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--memory-limit", metavar="SIZE", help="use no more than this, such as 24GB or 22.5GiB")
    limit.add_argument("--as", metavar="GPU", dest="as_gpu", help="use no more than a card of the catalog has")
    parser.add_argument("--steps", type=whole_number, default=3, help="optimizer steps, at least 2 (default 3)")
    parser.add_argument("--force", action="store_true", help="also when this machine's own memory does not suffice")
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    """0 it ran; 3 host memory does not suffice; else as a run would end: 2 bad input, 4 out of memory, 5 environment,
    1 anything else."""
    limit = parse_bytes(args.memory_limit) if args.memory_limit else limit_of_gpu(args.as_gpu) if args.as_gpu else None
    rehearsal = rehearse_preset(
        args.preset, overrides_of(args), gpu=args.gpu, limit_bytes=limit, steps=args.steps,
        allow_host_over=args.force, on_start=_say_start,
    )  # fmt: skip
    if args.json:
        json.dump(rehearsal_dict(rehearsal), sys.stdout, indent=2)
        print()
    else:
        print(rehearsal_text(rehearsal))
    return 0 if rehearsal.failure is None else int(rehearsal.failure.get("exit_code", 1))


def _say_start() -> None:
    print("rehearsing: true shapes, random weights, the longest row ...", file=sys.stderr, flush=True)
