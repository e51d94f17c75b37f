"""Pasted shell text is split as it was meant."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.services.importing.shell_words import shell_words


def split(text: str) -> list[str]:
    return [word.text for word in shell_words(text) if word.kind == "word"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a \\\n  b", ["a", "b"]),
        ("swift sft \\ --model X \\ --n 1", ["swift", "sft", "--model", "X", "--n", "1"]),
        ("--model X\\ --n 1", ["--model", "X", "--n", "1"]),
        ("my\\ file.jsonl", ["my file.jsonl"]),
        ("a \\\\ --b", ["a", "--b"]),
        ("a \\n --b", ["a", "--b"]),
        ("a ^\n--b", ["a", "--b"]),
        ("a `\n--b", ["a", "--b"]),
        ("'a b' \"c d\" e'f g'", ["a b", "c d", "e'f", "g'"]),
        ("--x='a b'", ["--x=a b"]),
        ("'it'\"'\"'s'", ["it's"]),
        ("“a b” ‘c d’ 「e f」", ["a b", "c d", "e f"]),
        ("don't --n 1", ["don't", "--n", "1"]),
        ("'open \\ --n 1", ["'open", "--n", "1"]),
        ('"a \\" b"', ['a " b']),
        ("'你好，（a）'", ["你好，（a）"]),
        ("a　b c", ["a", "b", "c"]),
        ("８１９２", ["8192"]),
        ("rows.jsonl#500", ["rows.jsonl#500"]),
        ("a\u200bb", ["ab"]),
        ("", []),
    ],
)
def test_words(text, words):
    assert split(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a 1 # note\nb 2", ["a", "1", "b", "2"]),
        ("# --a 1\n--b 2", ["--b", "2"]),
        ("--a 1 \\ # key --b 2", ["--a", "1", "--b", "2"]),
        (
            "--a 1 \\ # key --b 2\n--c 3",
            ["--a", "1", "--c", "3"],
        ),  # the next line goes on: the comment was a line's end
        ("x \\ --a 1 \\ # ⇦ on --b 2 # ⇦ two", ["x", "--a", "1", "--b", "2"]),
        ("# one card swift sft --a 1", ["swift", "sft", "--a", "1"]),
        ("--a 1 # note", ["--a", "1"]),
    ],
)
def test_a_comment_ends_where_its_line_ended_before_the_paste(text, words):
    assert split(text) == words


def test_commands_end_at_lines_and_operators_but_not_at_continuations():
    kinds = [word.kind for word in shell_words("a \\ # note\nb && c; d | e\nf")]
    assert kinds == [
        "word", "word", "stop", "stop", "word", "stop", "word", "stop", "word", "newline", "word",
    ]  # fmt: skip


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00\r\u200b\u200c\u200d\u2060\ufeff\ufe0f"))))
def test_what_a_shell_would_quote_comes_back(words):
    """But for words that hold a joined flag, which is taken for one."""
    line = shlex.join(words)
    if "\\" not in line:
        assert split(line) == words


@given(st.text())
def test_no_text_raises(text):
    shell_words(text)
