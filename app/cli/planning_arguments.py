"""The arguments that plan, fit, rehearse and train share: a preset, overrides, and hardware."""

from __future__ import annotations

import argparse
from typing import Any

from app.services.hardware import parse_bytes, parse_cluster, preset_cluster, with_memory_limit
from app.services.presets import load_preset, parse_override
from planner.goals import GOALS
from planner.types import ClusterSpec, Preset


def add_planning_arguments(
    parser: argparse.ArgumentParser, help_of_preset: str = "a preset's name, or the path of a YAML file"
) -> None:
    parser.add_argument("preset", help=help_of_preset)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="override a preset key, such as max_length=16384 or lora.rank=8 (repeatable)")  # fmt: skip
    parser.add_argument("--gpu", metavar="GPUS", help="hardware such as A10, 2xH100-80G, cpu, here")


def overrides_of(args: argparse.Namespace) -> dict[str, Any]:
    return dict(parse_override(text) for text in args.overrides)


def add_memory_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory-limit", metavar="SIZE", help="plan as if each GPU had no more than this, as 5.8GB")


def add_goal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--goal", choices=GOALS, default=GOALS[0], help="what ranks best among what fits")


def cluster_of(args: argparse.Namespace, preset: Preset | None = None) -> ClusterSpec | None:
    """The hardware that was asked for; None leaves it to the preset. Raises: ConfigError."""
    cluster = parse_cluster(args.gpu) if args.gpu else None
    if args.memory_limit is None:
        return cluster
    cluster = cluster or preset_cluster((preset or load_preset(args.preset)).hardware)
    return with_memory_limit(cluster, parse_bytes(args.memory_limit))
