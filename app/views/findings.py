"""Findings of an import or an export as rows, blocks, text and JSON. Called by the CLI, the TUI and the page."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.services.importing.finding import MEANINGS, Finding, Kind

MARKS: dict[Kind, str] = {
    "impossible": "x", "risk": "!", "unknown": "?", "translated": ">", "implied": "+", "default": "=", "ignored": "-",
}  # fmt: skip
TITLES: dict[Kind, str] = {
    "impossible": "Not as written", "risk": "Likely to disappoint", "unknown": "Not understood",
    "translated": "Carried over", "implied": "Written down (that tool does it unasked)",
    "default": "Done anyway", "ignored": "Without effect here",
}  # fmt: skip
ROLES: dict[Kind, str] = {
    "impossible": "error", "risk": "warning", "unknown": "warning", "translated": "", "implied": "", "default": "",
    "ignored": "",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingBlock:
    """All findings of one kind. ``role`` is error or warning where a face may use a colour, else empty."""

    kind: Kind
    title: str
    role: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    kind: Kind
    mark: str  # one ASCII character, so that meaning is never in colour alone
    flags: str  # as pasted; "" when it is about the whole
    keys: str  # "lora.rank: 64"
    words: str  # what, why and fix in sentences


def finding_rows(findings: Iterable[Finding]) -> tuple[FindingRow, ...]:
    return tuple(
        FindingRow(
            kind=finding.kind, mark=MARKS[finding.kind], flags=" ".join(finding.flags), keys=keys_words(finding.keys),
            words=" ".join(words for words in (finding.what, finding.why, finding.fix) if words),
        )
        for finding in findings
    )  # fmt: skip


def findings_text(findings: Sequence[Finding], *, width: int = 100) -> str:
    """One block a kind, the kinds that need an eye first. Ends without a newline."""
    return "\n".join("\n".join((f"{block.title}:", *block.lines)) for block in findings_blocks(findings, width=width))


def findings_blocks(findings: Sequence[Finding], *, width: int) -> tuple[FindingBlock, ...]:
    """The blocks of ``findings_text``, for faces that give a kind a colour of its own."""
    blocks = []
    for kind in MEANINGS:
        rows = [row for row in finding_rows(findings) if row.kind == kind]
        if rows:
            lines = (
                _implied(rows, width) if kind == "implied" else [line for row in rows for line in _lines(row, width)]
            )
            blocks.append(FindingBlock(kind=kind, title=TITLES[kind], role=ROLES[kind], lines=tuple(lines)))
    return tuple(blocks)


def counts_words(findings: Sequence[Finding]) -> str:
    """``18 carried over, 3 not as written, 1 not understood``."""
    words = {
        "translated": "carried over", "implied": "written down", "default": "done anyway", "ignored": "without effect",
        "impossible": "not as written", "risk": "likely to disappoint", "unknown": "not understood",
    }  # fmt: skip
    counts = {kind: sum(finding.kind == kind for finding in findings) for kind in words}
    return ", ".join(f"{count} {words[kind]}" for kind, count in counts.items() if count)


def keys_words(keys: Sequence[tuple[str, Any]]) -> str:
    return ", ".join(f"{key} left out" if value is None else f"{key}: {value_words(value)}" for key, value in keys)


def value_words(value: Any) -> str:
    """As a preset has it."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_words, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {value_words(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Plain data: what JSON cannot hold (a date of a YAML) becomes text."""
    return list(json.loads(json.dumps([finding.to_dict() for finding in findings], default=str)))


def _lines(row: FindingRow, width: int) -> list[str]:
    """The flag with its keys on one line, the sentences below it."""
    head = f"{row.flags} -> {row.keys}" if row.flags and row.keys else row.flags or row.keys
    lines = _wrapped(head or row.words, width, first=f"  {row.mark} ", rest="      ")
    if head and row.words:
        lines += _wrapped(row.words, width, first="      ", rest="      ")
    return lines


def _implied(rows: Sequence[FindingRow], width: int) -> list[str]:
    """Values alone in one paragraph; those with a reason on lines of their own."""
    bare = ", ".join(row.keys for row in rows if not row.words)
    lines = _wrapped(bare, width, first=f"  {MARKS['implied']} ", rest="      ") if bare else []
    return lines + [line for row in rows if row.words for line in _lines(row, width)]


def _wrapped(text: str, width: int, *, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
