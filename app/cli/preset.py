"""`longfit preset list|show|save`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from app.services.presets import list_presets, load_preset, parse_override, preset_text, save_preset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="all presets: built-in, user, project")
    listing.add_argument("--json", action="store_true")
    show = actions.add_parser("show", help="a preset as YAML")
    show.add_argument("preset")
    save = actions.add_parser("save", help="save a preset, changed, among your own")
    save.add_argument("preset")
    save.add_argument("name", help="name of the new preset")
    save.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    save.add_argument("--overwrite", action="store_true")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        presets = list_presets()
        if args.json:
            rows = [{"name": p.name, "origin": p.origin, "description": p.description, "path": p.path} for p in presets]
            json.dump(rows, sys.stdout, indent=2, ensure_ascii=False)
            print()
            return 0
        width = max(len(preset.name) for preset in presets)
        for preset in presets:
            print(f"{preset.name:<{width}}  {preset.origin:<8}  {preset.description}")
        return 0
    preset = load_preset(args.preset)
    if args.action == "show":
        print(preset_text(preset), end="")
        return 0
    overrides = dict(parse_override(text) for text in args.overrides)
    from app.services.presets import merge_overrides
    from app.services.resolve import resolve

    changed = replace(preset, name=args.name, values=merge_overrides(preset.values, overrides))
    resolve(changed)  # nothing is saved that could not be planned
    print(save_preset(changed, overwrite=args.overwrite))
    return 0
