"""`longfit fit`: the inverse questions. The longest row, the largest batch, how many GPUs, which GPU."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from app.cli.parser import whole_number
from app.cli.planning_arguments import add_goal, add_memory_limit, add_planning_arguments, cluster_of, overrides_of
from app.services.models import find_model, is_model
from app.services.planning import largest_batch_for, longest_length_for, plan_resolved, refuse_length
from app.services.presets import load_preset, preset_names
from app.services.resolve import Resolved, resolve
from app.services.sizing import METHODS, fewest_gpus_for, hardware_for, method_overrides, preset_of_model
from planner.errors import ConfigError
from planner.types import Preset

QUESTIONS = ("length", "batch", "gpus", "hardware")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_planning_arguments(parser, "a preset, the path of one, or a model")
    add_memory_limit(parser)
    add_goal(parser)
    parser.add_argument("--length", type=whole_number, metavar="TOKENS", help="the same as --set max_length=TOKENS")
    parser.add_argument("--method", choices=METHODS, help="in place of the preset's; lora for a model")
    parser.add_argument("--solve", choices=QUESTIONS, help="the longest length (default), the largest batch, the"
                        " fewest GPUs of the type of --gpu, or which hardware (default for a model alone)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    """0 with an answer, 2 bad input, 3 when nothing fits."""
    preset, of_model = _preset(args.preset)
    overrides = overrides_of(args)
    if args.length is not None:
        overrides["max_length"] = args.length
    if args.method is not None:
        overrides |= method_overrides(preset.values, args.method)
    question = args.solve or ("hardware" if of_model and not args.gpu else "length")
    if question in ("gpus", "hardware"):
        return _print_sizing(args, preset, overrides, question)
    resolved = resolve(preset, overrides, cluster=cluster_of(args, preset))
    return _print_largest(args, resolved, question)


def _preset(name: str) -> tuple[Preset, bool]:
    """The preset of that name, or one made of the model of that name. Raises: ConfigError with the nearest names."""
    if name in preset_names() or name.endswith((".yaml", ".yml")):
        return load_preset(name), False
    if "/" in name and not is_model(name):
        find_model(name)  # says which models are near
    return (preset_of_model(name), True) if is_model(name) else (load_preset(name), False)


def _print_sizing(args: argparse.Namespace, preset: Preset, overrides: dict[str, Any], question: str) -> int:
    from app.services.hardware import parse_cluster
    from app.views.sizing_view import sizing_dict, sizing_text

    if question == "gpus" and not args.gpu:
        raise ConfigError("--solve gpus asks how many, and not of which.", fix="Add --gpu A10, or --solve hardware.")
    if args.memory_limit is not None:
        raise ConfigError("--memory-limit is of given hardware.", fix="Leave it out, or ask for a length or a batch.")
    cluster = parse_cluster(args.gpu) if args.gpu else parse_cluster("H200")  # asked about is other hardware anyway
    resolved = resolve(preset, {**overrides, "sequence_parallel": 1, "ulysses": None, "ring": None}, cluster=cluster)
    refuse_length(plan_resolved(resolved))
    if question == "gpus":
        sizing = fewest_gpus_for(resolved, cluster.gpu.name)
    else:
        sizing = hardware_for(resolved, goal=args.goal)
    if args.json:
        json.dump(sizing_dict(resolved, sizing, goal=args.goal), sys.stdout, indent=2)
        print()
    else:
        print(sizing_text(resolved, sizing, goal=args.goal))
    return 0 if sizing.answers else 3


def _print_largest(args: argparse.Namespace, resolved: Resolved, question: str) -> int:
    key, solve = {
        "length": ("max_length", longest_length_for),
        "batch": ("per_device_train_batch_size", largest_batch_for),
    }[question]
    answer = solve(resolved)
    hardware = f"{resolved.cluster.num_gpus} x {resolved.cluster.gpu.name}"
    if args.json:
        json.dump({"schema": 1, "solve": question, "key": key, "value": answer, "hardware": hardware}, sys.stdout)
        print()
    elif answer:
        now = getattr(resolved.config, key)
        words = f"is the largest that fits on {hardware}"
        if question == "length" and answer == resolved.model.max_position_embeddings:
            words = f"fits on {hardware}, and is all the model has positions for"
        print(f"{key} {answer} {words} (the preset asks for {now}).")
    else:
        print(f"No {key} fits on {hardware}: what does not depend on it is already too large.", file=sys.stderr)
    return 0 if answer else 3
