"""`longfit data`: what becomes of each row of a data set, before any GPU is touched."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

from app.services.planning import plan_preset
from app.services.prepare_data import PreparedData, prepare_data, prepare_sources
from app.services.presets import preset_names
from app.views.data_report import data_report_text, progress_words
from core.data.report import DataRefused
from planner.errors import ConfigError
from planner.types import DataConfig

DEFAULT_MAX_LENGTH = 8192


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="PRESET_OR_FILE", help="a preset, or data: a file, folder, glob, file#500")
    parser.add_argument("--model", help="whose tokenizer and chat template are used; needed for a file")
    parser.add_argument("--max-length", type=int, metavar="N", help=f"tokens of a row (a file: {DEFAULT_MAX_LENGTH})")
    parser.add_argument("--shape", help="of the rows, when it should not be detected")
    parser.add_argument("--column", action="append", default=[], metavar="OURS=THEIRS", dest="columns",
                        help="a column under another name, such as response=antwort (repeatable)")  # fmt: skip
    parser.add_argument("--over-length", choices=("drop", "truncate_left", "truncate_right", "split"))
    parser.add_argument("--on-bad-row", choices=("stop", "skip"))
    parser.add_argument("--rows", type=int, default=3, metavar="N", help="show the first N rows with targets marked")
    parser.add_argument("--json", action="store_true", help="the report, machine-readable")


def run(args: argparse.Namespace) -> int:
    """0 all rows usable or skipped, 2 bad input (the report is printed too)."""
    try:
        report = _prepare(args).report
    except DataRefused as refused:  # its words, which list the bad rows, go to stderr with the error
        _print(_limited(refused.report, args.rows), args, error=refused)
        raise
    _print(_limited(report, args.rows), args)
    return 0


def _prepare(args: argparse.Namespace) -> PreparedData:
    given = {"shape": args.shape, "over_length": args.over_length, "on_bad_row": args.on_bad_row}
    choices: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if args.columns:
        choices["columns"] = tuple(_column(text) for text in args.columns)
    if args.source in preset_names() or args.source.endswith((".yaml", ".yml")):
        overrides = {"model": args.model, "max_length": args.max_length}
        planned = plan_preset(args.source, {key: value for key, value in overrides.items() if value is not None})
        config = planned.resolved.config
        return prepare_data(replace(config, data=replace(config.data, **choices)), on_progress=_show_progress)
    if args.model is None:
        raise ConfigError(
            f"Whose tokenizer should read {args.source}?",
            why=f"{args.source!r} is not a preset, and lengths depend on the model.",
            fix=f"longfit data {args.source} --model Qwen/Qwen2.5-7B-Instruct",
        )
    return prepare_sources(
        DataConfig(train=(args.source,), **choices), model=args.model, max_length=args.max_length or DEFAULT_MAX_LENGTH,
        on_progress=_show_progress,
    )  # fmt: skip


def _column(text: str) -> tuple[str, str]:
    ours, found, theirs = text.partition("=")
    if not found or not ours or not theirs:
        raise ConfigError(f"--column {text} names no pair.", fix="Write --column OURS=THEIRS, e.g. response=antwort.")
    return ours, theirs


def _print(report: dict[str, Any], args: argparse.Namespace, error: DataRefused | None = None) -> None:
    if args.json:
        words = {"error": {"what": error.what, "why": error.why, "fix": error.fix}} if error else {}
        json.dump({"schema": 1, **report, **words}, sys.stdout, ensure_ascii=False, indent=2)
        print()
    else:
        encoding = (sys.stdout.encoding or "ascii").lower()
        ascii_only = not encoding.startswith("utf")
        print(data_report_text(report, rows=args.rows, ascii_only=ascii_only, with_problems=error is None))


def _limited(report: dict[str, Any], rows: int) -> dict[str, Any]:
    """The report with ``rows`` previews; a refused set's report is that of its one bad part."""
    whole = report if "train" in report else {"train": report, "eval": None}
    return {
        name: {**part, "preview": part["preview"][:rows]} if name in ("train", "eval") and part else part
        for name, part in whole.items()
    }


def _show_progress(rows: int, file: str, share: float | None) -> None:
    if sys.stderr.isatty():
        print(f"{progress_words(rows, file, share)}\x1b[K\r", end="", file=sys.stderr, flush=True)
