"""A screen as text that is the same on every machine: its cells, and the style of each. Used by the snapshot tests.

    | RUNNING  step 40 of 100 |        every row of the screen between bars
    ...
    styles
      A #e4e4e4 on #161b20 bold        every style that occurs, in the order of its first cell
    rows
      A9 B16                           the styles of a row, run by run

Rows are compared before styles, so that a failure shows words first.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

_NAMES = [*string.ascii_uppercase, *string.ascii_lowercase]
_ATTRIBUTES = ("bold", "dim", "italic", "underline", "reverse", "strike", "blink")


def screen_grid(app: Any) -> str:
    """What the app shows now, modal windows included. Two equal screens give equal texts."""
    rows = [_without_control(strip) for strip in app.screen._compositor.render_strips()]
    styles: dict[str, str] = {}
    runs = [_runs(row, styles) for row in rows]
    lines = [f"|{''.join(segment.text for segment in row)}|" for row in rows]
    legend = [f"  {name} {words}" for words, name in styles.items()]
    return "\n".join([*lines, "styles", *legend, "rows", *(f"  {run}" for run in runs), ""])


def text_rows(grid: str) -> list[str]:
    """The words of a grid, without the styles."""
    return [line[1:-1] for line in grid.split("\nstyles\n")[0].split("\n")]


def _without_control(strip: Iterable[Segment]) -> list[Segment]:
    return [segment for segment in strip if not segment.control and segment.text]


def _runs(row: list[Segment], styles: dict[str, str]) -> str:
    words = ((_style_words(segment.style), cell_len(segment.text)) for segment in row)
    runs = [(key, sum(width for _, width in group)) for key, group in groupby(words, key=lambda entry: entry[0])]
    return " ".join(f"{styles.setdefault(key, _name(len(styles)))}{width}" for key, width in runs)


def _name(index: int) -> str:
    first, second = divmod(index, len(_NAMES))
    return (_NAMES[first - 1] if first else "") + _NAMES[second]


def _style_words(style: Style | None) -> str:
    if style is None:
        return "plain"
    color = style.color.get_truecolor().hex if style.color and not style.color.is_default else "default"
    ground = style.bgcolor.get_truecolor().hex if style.bgcolor and not style.bgcolor.is_default else "default"
    marks = [attribute for attribute in _ATTRIBUTES if getattr(style, attribute)]
    return " ".join([f"{color} on {ground}", *marks])
