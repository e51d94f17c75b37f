"""`longfit verify`: the planner's closed form against the real model code of the installed versions, without a GPU."""

from __future__ import annotations

import argparse
import json
import sys

from app.services.verify import cases_of, installed, verify
from app.views.verify_view import summary_text, verified_dict, verified_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="MODEL|PRESET",
        help="models, each with the usual methods of both engines, or presets of one GPU, each with the engine that a "
        "run takes; without any, models of every family",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    """0 when planned and dry run agree at every instant, 1 when not, 2 bad input."""
    cases = cases_of(args.names)
    print(f"{len(cases)} dry runs of true shapes, without weights ...", file=sys.stderr)
    done = []
    for verified in verify(cases):
        done.append(verified)
        if not args.json:
            print(verified_text(verified), end="\n\n", flush=True)
    if args.json:
        json.dump(verified_dict(done, installed()), sys.stdout, indent=2)
        print()
    else:
        print(summary_text(done, installed()))
    return int(any(verified.off for verified in done))
