"""`longfit data`: what becomes of each row of a data set, before any GPU is touched."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from app.cli.parser import whole_number
from app.cli.reading_line import ReadingLine
from app.services.planning import plan_preset
from app.services.prepare_data import PreparedData, Progress, prepare_data, prepare_sources
from app.services.preset_keys import RUN_KEYS, check_keys, check_value
from app.services.presets import merge_overrides, parse_override, preset_names
from app.services.resolve import data_config
from app.services.terminal import prefers_ascii
from app.views.data_report import data_report_text
from core.data.report import DataRefused
from planner.errors import ConfigError

DEFAULT_MAX_LENGTH = 8192
_RUN_KEYS = {key.name: key for key in RUN_KEYS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="+", metavar="PRESET_OR_FILE",
                        help="a preset, or data: files, folders, globs, file#500, hub ids")  # fmt: skip
    parser.add_argument("--model", help="whose tokenizer and chat template are used; needed for a file")
    parser.add_argument(
        "--max-length", type=whole_number, metavar="N", help=f"tokens of a row (a file: {DEFAULT_MAX_LENGTH})"
    )
    parser.add_argument("--weight", action="append", default=[], metavar="SET=SHARE", dest="weights",
                        help="a set's share of the rows, for each of several sets (repeatable)")  # fmt: skip
    parser.add_argument("--shape", help="of the rows, when it should not be detected")
    parser.add_argument("--column", action="append", default=[], metavar="OURS=THEIRS", dest="columns",
                        help="a column under another name, such as response=antwort (repeatable)")  # fmt: skip
    parser.add_argument("--over-length", choices=("drop", "truncate_left", "truncate_right", "split"))
    parser.add_argument("--on-bad-row", choices=("stop", "skip"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="another preset key, such as data.train_on=last (repeatable)")  # fmt: skip
    parser.add_argument("--rows", type=_count, default=3, metavar="N",
                        help="show the first N rows with targets marked")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the report, machine-readable")


def run(args: argparse.Namespace) -> int:
    """0 all rows usable or skipped, 2 bad input (the report is printed too)."""
    try:
        with ReadingLine() as line:
            report = _prepare(args, line).report
    except DataRefused as refused:  # its words, which list the bad rows, go to stderr with the error
        _print(_limited(refused.report, args.rows), args, error=refused)
        raise
    _print(_limited(report, args.rows), args)
    return 0


def _prepare(args: argparse.Namespace, on_progress: Progress) -> PreparedData:
    given = {
        "model": args.model,
        "max_length": args.max_length,
        "data.shape": args.shape,
        "data.over_length": args.over_length,
        "data.on_bad_row": args.on_bad_row,
        "data.columns": dict(_pair(text, "--column response=antwort") for text in args.columns) or None,
        "data.weights": dict(_weight(text) for text in args.weights) or None,
    }
    overrides = {key: value for key, value in given.items() if value is not None}
    overrides |= dict(parse_override(text) for text in args.overrides)
    first = args.sources[0]
    if len(args.sources) == 1 and (first in preset_names() or first.endswith((".yaml", ".yml"))):
        return prepare_data(plan_preset(first, overrides).resolved.config, on_progress=on_progress)
    values = merge_overrides({"max_length": DEFAULT_MAX_LENGTH, "data": {"train": args.sources}}, overrides)
    check_keys(values, ("model", "max_length", "seed", "data"), where="longfit data FILE")
    if values.get("model") is None:
        raise ConfigError(
            f"Whose tokenizer should read {first}?",
            why=f"{first!r} is not a preset, and lengths depend on the model.",
            fix=f"longfit data {first} --model Qwen/Qwen2.5-7B-Instruct",
        )
    run = {
        name: check_value(_RUN_KEYS[name], values.get(name), where="longfit data") for name in ("max_length", "seed")
    }
    data = data_config(values["data"], where="data")
    return prepare_sources(data, model=str(values["model"]), **run, on_progress=on_progress)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows")
    return int(text)


def _pair(text: str, example: str) -> tuple[str, str]:
    name, found, value = text.rpartition("=")
    if not found or not name or not value:
        raise ConfigError(f"{text!r} names no pair.", fix=f"Write it as in {example}.")
    return name, value


def _weight(text: str) -> tuple[str, float]:
    name, share = _pair(text, example := "--weight chat.jsonl=0.7")
    try:
        return name, float(share)
    except ValueError:
        raise ConfigError(f"--weight {text}: {share!r} is not a number.", fix=f"Write it as in {example}.") from None


def _print(report: dict[str, Any], args: argparse.Namespace, error: DataRefused | None = None) -> None:
    if args.json:
        words = {"error": {"what": error.what, "why": error.why, "fix": error.fix}} if error else {}
        json.dump({"schema": 1, **report, **words}, sys.stdout, indent=2)
        print()
    else:
        text = data_report_text(report, rows=args.rows, ascii_only=prefers_ascii(), with_problems=error is None)
        print(text)


def _limited(report: dict[str, Any], rows: int) -> dict[str, Any]:
    """The report with ``rows`` previews; a refused set's report is that of its one bad part."""
    whole = report if "train" in report else {"train": report, "eval": None}
    return {
        name: {**part, "preview": part["preview"][:rows]} if name in ("train", "eval") and part else part
        for name, part in whole.items()
    }
