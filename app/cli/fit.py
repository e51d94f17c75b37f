"""`longfit fit`: the inverse question, the longest row or the largest batch that fits."""

from __future__ import annotations

import argparse
import json
import sys

from app.cli.planning_arguments import add_planning_arguments, overrides_of
from app.services.hardware import parse_cluster
from app.services.planning import largest_batch_for, longest_length_for, plan_preset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_planning_arguments(parser)
    parser.add_argument("--solve", choices=("length", "batch"), default="length", help="what to make as large as fits")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """0 with an answer, 3 when nothing fits."""
    cluster = parse_cluster(args.gpu) if args.gpu else None
    resolved = plan_preset(args.preset, overrides_of(args), cluster=cluster).resolved
    key, solve = {
        "length": ("max_length", longest_length_for),
        "batch": ("per_device_train_batch_size", largest_batch_for),
    }[args.solve]
    answer = solve(resolved)
    hardware = f"{resolved.cluster.num_gpus} x {resolved.cluster.gpu.name}"
    if args.json:
        json.dump({"solve": args.solve, "key": key, "value": answer, "hardware": hardware}, sys.stdout)
        print()
    elif answer:
        now = getattr(resolved.config, key)
        print(f"{key} {answer} is the largest that fits on {hardware} (the preset asks for {now}).")
    else:
        print(f"No {key} fits on {hardware}: what does not depend on it is already too large.", file=sys.stderr)
    return 0 if answer else 3
