"""`longfit preset list|show|save|diff`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from app.services.presets import (
    list_presets,
    load_preset,
    parse_override,
    preset_text,
    save_preset,
    unreadable_presets,
)
from planner.types import Preset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="all presets: built-in, user, project")
    listing.add_argument("--json", action="store_true")
    show = actions.add_parser("show", help="a preset as YAML")
    show.add_argument("preset")
    show.add_argument("--as", choices=("swift", "axolotl", "llamafactory", "hf"), dest="target",
                      help="in the words of another tool; what it cannot say is told")  # fmt: skip
    save = actions.add_parser("save", help="save a preset, changed, among your own")
    save.add_argument("preset")
    save.add_argument("name", help="name of the new preset")
    save.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    save.add_argument("--overwrite", action="store_true")
    diff = actions.add_parser("diff", help="what differs between two presets, key by key")
    diff.add_argument("preset")
    diff.add_argument("other")
    diff.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        presets = list_presets()
        if args.json:
            rows = [{"name": p.name, "origin": p.origin, "description": p.description, "path": p.path} for p in presets]
            json.dump(rows, sys.stdout, indent=2)
            print()
            return 0
        width = max(len(preset.name) for preset in presets)
        for preset in presets:
            print(f"{preset.name:<{width}}  {preset.origin:<8}  {preset.description}")
        for error in unreadable_presets():
            print(error, file=sys.stderr)
        return 0
    preset = load_preset(args.preset)
    if args.action == "show":
        if args.target is not None:
            return _show_as(preset, args.target)
        print(preset_text(preset), end="")
        return 0
    if args.action == "diff":
        return _show_diff(preset, load_preset(args.other), as_json=args.json)
    overrides = dict(parse_override(text) for text in args.overrides)
    from app.services.presets import merge_overrides
    from app.services.resolve import resolve

    changed = replace(preset, name=args.name, values=merge_overrides(preset.values, overrides))
    if overrides:  # what it said of itself, and what was measured, need not be true any more
        changed = replace(changed, description=f"{preset.name} with other {', '.join(overrides)}", measured=())
    resolve(changed)  # nothing is saved that could not be planned
    print(save_preset(changed, overwrite=args.overwrite))
    return 0


def _show_as(preset: Preset, target: str) -> int:
    from app.services.importing.exported import export_preset
    from app.views.findings import findings_text

    exported = export_preset(preset, target)
    lost = [finding for finding in exported.findings if finding.kind != "translated"]
    if lost:
        print(findings_text(lost), file=sys.stderr)
    print(exported.text, end="")
    return 0


def _show_diff(first: Preset, second: Preset, *, as_json: bool) -> int:
    from app.views.preset_diff import diff_rows, diff_text

    if as_json:
        rows = [{"key": key, "first": old, "second": new} for key, old, new in diff_rows(first, second)]
        json.dump({"schema": 1, "first": first.name, "second": second.name, "differences": rows}, sys.stdout, indent=2)
        print()
    else:
        print(diff_text(first, second))
    return 0
