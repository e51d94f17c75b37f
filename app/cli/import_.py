"""`longfit import`: a pasted command or configuration of another tool becomes a preset; findings say what changed."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from app.services.importing.finding import refuse_impossible
from app.services.importing.imported import Imported, import_text
from app.services.presets import preset_text, save_preset
from app.views.findings import counts_words, findings_json, findings_text
from planner.errors import ConfigError
from planner.types import Preset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.allow_abbrev = False  # flags of the pasted command are not ours
    parser.set_defaults(takes_rest=True)
    parser.add_argument(
        "text", nargs="*", metavar="TEXT|FILE|-",
        help="the command or configuration (quotes are not needed), a file that holds it, or - for standard input",
    )  # fmt: skip
    parser.add_argument("--save", metavar="NAME", help="save the preset among your own")
    parser.add_argument("--overwrite", action="store_true", help="with --save: replace one of the same name")
    parser.add_argument("--strict", action="store_true", help="stop at the first thing that cannot be as written")
    parser.add_argument("--json", action="store_true", help="preset and findings as JSON")


def run(args: argparse.Namespace) -> int:
    """0 with a preset or a line to run; 2 when nothing was recognised, or --strict found something impossible."""
    imported = import_text(read_source([*args.text, *args.rest]), name=args.save)
    if args.json:
        json.dump(to_dict(imported), sys.stdout, indent=2, default=str)
        print()
    elif len(imported.findings) > 1 or imported.preset is not None or imported.command:
        say_findings(imported)  # else the error below says it
    if args.strict:
        refuse_impossible(imported.findings)
    preset = imported.preset
    if preset is None:
        if not imported.command:
            found = imported.findings[0]
            raise ConfigError("Nothing was imported.", why=found.why or found.what, fix=found.fix)
        if not args.json:
            print(shlex.join(imported.command))
        return 0
    if args.save is not None:
        path = save_preset(preset, overwrite=args.overwrite)
        if not args.json:
            print(path)
        _say(_next_lines(imported, preset))
    elif not args.json:
        print(preset_text(preset), end="")
    return 0


def read_source(words: list[str]) -> str:
    """The text itself, the file it names, or standard input. Raises: ConfigError for what is no text."""
    if not words or words == ["-"]:
        return _decoded(sys.stdin.buffer.read(), "standard input")
    if len(words) > 1:
        return shlex.join(words)
    try:
        path = Path(words[0]).expanduser()
        is_file = path.is_file()
    except (OSError, ValueError, RuntimeError):  # a text too long to be a name
        return words[0]
    if is_file:
        return _decoded(path.read_bytes(), words[0])
    if path.suffix in (".yaml", ".yml", ".json", ".sh", ".txt", ".py") and not any(map(str.isspace, words[0])):
        raise ConfigError(f"There is no file {words[0]}.", why=f"Looked from {Path.cwd()}.")
    if path.is_dir():
        raise ConfigError(f"{words[0]} is a folder.", why="A command or a configuration is one file.")
    return words[0]


def to_dict(imported: Imported) -> dict[str, object]:
    preset = imported.preset
    body = preset and {
        "name": preset.name, "description": preset.description, "hardware": dict(preset.hardware), **preset.values,
    }  # fmt: skip
    return {
        "schema": 1, "dialect": imported.dialect, "verb": imported.verb, "preset": body,
        "runs_dir": imported.runs_dir, "command": list(imported.command), "findings": findings_json(imported.findings),
    }  # fmt: skip


def say_findings(imported: Imported) -> None:
    if imported.findings:
        _say(findings_text(imported.findings))
        _say(counts_words(imported.findings) + "\n")


def _next_lines(imported: Imported, preset: Preset) -> str:
    runs_dir = f" --runs-dir {shlex.quote(imported.runs_dir)}" if imported.runs_dir else ""
    return f"longfit plan {preset.name} | longfit train {preset.name}{runs_dir}"


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text.", why=f"{error}.", fix="Save it as UTF-8.") from None


def _say(text: str) -> None:
    print(text, file=sys.stderr)
