"""`longfit export`: what a run has trained, in a folder for other tools."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from app.cli.parser import whole_number
from app.cli.run_arguments import add_run_arguments, run_of
from app.services.export import export
from app.views.format import format_bytes

_WHAT = {
    "adapter": "the adapter, in PEFT's layout",
    "merged": "base and adapter as one model",
    "model": "the fully trained model",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--step", type=whole_number, metavar="N", help="the checkpoint of this step, not the newest")
    parser.add_argument("--merge", action="store_true", help="base weights and adapter as one model (of a QLoRA run: "
                        "the base in 16 bits)")  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="a folder that is not there yet (default: of the run's name, here)"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    """0; 1 the process that merges was ended, 2 no such checkpoint or the folder is there, 5 no room, 6 no such run."""
    out = None if args.out is None else args.out.expanduser()
    exported = export(run_of(args), step=args.step, merge=args.merge, out=out)
    if args.json:
        print(json.dumps(exported.to_dict(), indent=1))
        return 0
    size = format_bytes(exported.size_bytes)
    print(f"step {exported.step:,} of {exported.run}: {_WHAT[exported.kind]}, {size}", file=sys.stderr)
    print(exported.folder)
    return 0
