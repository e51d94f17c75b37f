"""`longfit tui`: the terminal interface; without a terminal, the plan as text."""

from __future__ import annotations

import argparse
import sys

# of app/tui/themes.py, which imports Textual: the other verbs must not wait for it
THEMES = ("longfit-dark", "longfit-light", "longfit-colour-blind", "longfit-mono")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", nargs="?", help="a preset's name, or the path of a YAML file")
    parser.add_argument("--ascii", action="store_true", help="letters instead of block patterns")
    parser.add_argument("--theme", choices=THEMES, help="colours, or none")


def run(args: argparse.Namespace) -> int:
    """0; what is not a terminal gets the plan of the preset as plain text, or the list of presets."""
    from app.tui.start import can_show, run_tui

    if can_show():
        return run_tui(args.preset, ascii_only=True if args.ascii else None, theme=args.theme)
    print("Not a terminal: plain text instead.", file=sys.stderr)
    if args.preset is None:
        from app.services.presets import list_presets

        for preset in list_presets():
            print(f"{preset.name}  {preset.description}")
        return 0
    from app.services.planning import plan_preset
    from app.services.terminal import prefers_ascii
    from app.views.text import plan_text

    print(plan_text(plan_preset(args.preset, alternatives=True).plan, ascii_only=args.ascii or prefers_ascii()))
    return 0
