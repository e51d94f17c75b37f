"""Tables of the page that are lists: rows on a wide page, a card for each row on a phone. Used by the tabs' HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def list_html(columns: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, kind: str) -> str:
    """``rows`` are cells of HTML, the first of each names its row. ``kind`` becomes a class of the table."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(_row(columns, row) for row in rows)
    return (
        f'<table class="list {kind}"><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _row(columns: Sequence[str], row: Sequence[str]) -> str:
    first, *others = row
    cells = "".join(
        f'<td data-column="{escape(column)}"><div>{cell}</div></td>'
        for column, cell in zip(columns[1:], others, strict=True)
    )
    return f'<tr><th scope="row">{first}</th>{cells}</tr>'


def text_table_html(columns: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str) -> str:
    """A small table of plain words; the first cell of a row names it."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in others) + "</tr>"
        for first, *others in rows
    )
    return (
        f'<table class="words"><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
