"""The data report as HTML for the Data tab: fates of rows, lengths, bad rows, first rows. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from app.views.data_report import (
    fate_rows,
    file_rows,
    held_out_words,
    length_words,
    packing_words,
    preview_lines,
    printable,
    set_rows,
    token_words,
)
from app.views.format import format_count
from core.data.report import problem_lines


def report_html(report: Mapping[str, Any]) -> str:
    """``report`` is core/data/prepare.py's. Bad rows come first: they are what has to be mended."""
    parts = [(name, report[name]) for name in ("train", "eval") if report.get(name)]
    held_out = held_out_words(report)
    return (
        "".join(_problems(name, part) for name, part in parts)
        + "".join(_part(name, part) for name, part in parts)
        + (f"<p>{escape(held_out)}</p>" if held_out else "")
        + _preview(report["train"])
    )


def _part(name: str, part: Mapping[str, Any]) -> str:
    blocks = [_counts(name, part)]
    if part["lengths"]["max"]:
        blocks.append(_lengths(name, part))
    sets = ""
    if len(part["sets"]) > 1:
        sets = _table(("set", "weight", "rows", "tokens"), set_rows(part), caption=f"{name}: what each set gives")
    return f'<div class="side-by-side">{"".join(blocks)}</div>{sets}'


def _counts(name: str, part: Mapping[str, Any]) -> str:
    """Fates, shapes, files and notes, as the terminal interface has them."""
    rows = [(words, count, share) for words, count, share in fate_rows(part)]
    rows += [(f"shape {shape}", format_count(count), "") for shape, count in part["shapes"].items()]
    if len(part["files"]) > 1:
        rows += list(file_rows(part))
    rows += [(words, format_count(count), "note") for words, count in part["notes"].items()]
    return _table(("what", "rows", "share"), rows, caption=f"{name}: what becomes of the rows")


def _lengths(name: str, part: Mapping[str, Any]) -> str:
    """The histogram: rows by tokens, numbers beside bars."""
    bins = part["lengths"]["histogram"]
    most = max((item["rows"] for item in bins), default=1)
    rows = "".join(
        f'<tr><th scope="row" class="number">{format_count(item["upto"])}</th>'
        f'<td class="number">{format_count(item["rows"])}</td>'
        f'<td class="meter"><span style="width:{100 * item["rows"] / most:.1f}%"></span></td></tr>'
        for item in bins
    )
    return (
        f'<div><table class="words histogram"><caption>{escape(f"{name}: {length_words(part)}")}</caption>'
        '<thead><tr><th scope="col" class="number">up to tokens</th><th scope="col" class="number">rows</th>'
        f"<th></th></tr></thead><tbody>{rows}</tbody></table>"
        f"<p>{escape(token_words(part))}</p><p>{escape(packing_words(part))}</p></div>"
    )


def _problems(name: str, part: Mapping[str, Any]) -> str:
    if not part["problems"]["count"]:
        return ""
    lines = "".join(f"<li>{escape(printable(line))}</li>" for line in problem_lines(part["problems"]))
    return f'<section class="issue error"><h3>{name}: bad rows</h3><ul class="bad-rows">{lines}</ul></section>'


def _preview(train: Mapping[str, Any] | None) -> str:
    """What the model sees; what it has to predict is bold and marked ``>``."""
    if train is None or not train["preview"]:
        return ""
    rows = ("\n".join(map(_preview_line, preview_lines(row))) for row in train["preview"])
    pre = "\n\n".join(rows)
    return (
        "<h3>First rows; lines marked &gt; are to be predicted</h3>"
        f'<pre class="preview" tabindex="0" aria-label="first rows">{pre}</pre>'
    )


def _preview_line(line: str) -> str:
    return f"<b>{escape(line)}</b>" if line.startswith("  > ") else escape(line)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str) -> str:
    """Numbers of the second column on the right; the first cell names its row."""
    head = "".join(f'<th scope="col"{_side(index)}>{column}</th>' for index, column in enumerate(columns))
    body = "".join(
        f'<tr><th scope="row" class="break">{escape(printable(row[0]))}</th>'
        + "".join(f"<td{_side(index)}>{escape(cell)}</td>" for index, cell in enumerate(row[1:], start=1))
        + "</tr>"
        for row in rows
    )
    return (
        f'<table class="words"><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _side(index: int) -> str:
    return ' class="number"' if index == 1 else ""
