"""Nothing stays behind the words that follow, and nothing is written where nobody watches."""

from __future__ import annotations

import io

import pytest

from app.cli.reading_line import ReadingLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def seen(text: str) -> str:
    """What stands on a terminal's line after ``text``."""
    cells: list[str] = []
    at = 0
    for character in text:
        if character == "\r":
            at = 0
        else:
            cells[at : at + 1] = [character]
            at += 1
    return "".join(cells).rstrip()


def test_the_line_is_overwritten_cut_to_the_terminal_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    with ReadingLine() as line:
        line(1200, "a-name-that-is-far-too-long-for-a-terminal-of-sixty.jsonl", 0.5)
        assert len(seen(terminal.getvalue())) == 59
        line(2400, "b\x1b[31m.jsonl", None)
        assert seen(terminal.getvalue()) == "2,400 rows read, now b\\x1b[31m.jsonl"
        line.clear()
        assert seen(terminal.getvalue()) == ""
        line(3600, "b.jsonl", 1.0)
    assert seen(terminal.getvalue() + "train: 3,600 text") == "train: 3,600 text"


def test_nothing_is_shown_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ReadingLine() as line:
        line(1, "a.jsonl", 0.5)
    assert capsys.readouterr().err == ""
