"""The arguments that plan, fit and train share: a preset, overrides, and hardware."""

from __future__ import annotations

import argparse
from typing import Any

from app.services.presets import parse_override


def add_planning_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", help="a preset's name, or the path of a YAML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="override a preset key, such as max_length=16384 or lora.rank=8 (repeatable)")  # fmt: skip
    parser.add_argument("--gpu", metavar="GPUS", help="hardware such as A10, 2xH100-80G, cpu, here")


def overrides_of(args: argparse.Namespace) -> dict[str, Any]:
    return dict(parse_override(text) for text in args.overrides)
