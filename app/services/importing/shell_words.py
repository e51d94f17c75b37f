"""Splits pasted shell text into words, as it was meant: it went through web pages, chats and word processors.

Called by command.py. What a real shell would not forgive is read by intention:

    swift sft \\ --model X \\ --max_length 8192     joined continuation lines: "\\ " separates, it escapes nothing
    --use_ulysses true \\ # key --lora_rank 8      on a joined line a comment reaches to the next flag
    —model “X”　--max_length ８１９２               typographic dashes and quotes, full-width characters
    --system Don't                               an apostrophe that closes nowhere is a letter
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_CLOSING = {"'": "'", '"': '"', "“": "”“", "”": "”", "‘": "’", "「": "」", "『": "』"}
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20, 0xA0: 0x20}
_INVISIBLE = frozenset("\u200b\u200c\u200d\u2060\ufeff\ufe0f\r")
_DASHES = "‐‑‒–—―−-"
_FLAG_AHEAD = re.compile(rf"[ \t]*[{_DASHES}]{{1,2}}[A-Za-z]")
# Where a comment on a joined line ends: at a flag, a variable in front of a command, or the command itself.
_RESUMES = re.compile(
    rf"(?<=\s)(?:[{_DASHES}]{{1,2}}[A-Za-z]|[A-Z][A-Z_]{{2,}}=\S|swift\s+\w+\s|llamafactory-cli\s|axolotl\s|trl\s)"
)
# Continuations that were escaped once more on their way here: two backslashes, or backslash and n as two characters.
_ESCAPED_CONTINUATION = re.compile(r"(?<=\s)(?:\\{2,}n?|\\n)(?=[\s-]|$)")
_JOINED = re.compile(r"\\[ \t]+\S")
_SWALLOWED_FLAG = re.compile(rf"\\\s+[{_DASHES}]{{1,2}}[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    kind: Literal["word", "newline", "stop"] = "word"  # stop: ; && || | &
    is_quoted: bool = False  # began with a quote: never a flag
    is_literal: bool = False  # in single quotes: $NAME stays


def shell_words(text: str) -> list[Word]:
    """Words and command ends. Takes any text and never raises."""
    text = _ESCAPED_CONTINUATION.sub("\\\\ ", text)
    words: list[Word] = []
    buffer: list[str] = []
    is_open = is_quoted = is_literal = is_continued = False
    bare = ""  # the character before, when it stood outside of quotes

    def close() -> None:
        nonlocal is_open, is_quoted, is_literal, bare
        if is_open:
            words.append(Word("".join(buffer), is_quoted=is_quoted, is_literal=is_literal))
        buffer.clear()
        is_open = is_quoted = is_literal = False
        bare = ""

    at = 0
    while at < len(text):
        char = text[at].translate(_FULL_WIDTH)
        if char in _INVISIBLE:
            at += 1
        elif char == "\n":
            close()
            if not is_continued:
                words.append(Word("\n", "newline"))
            is_continued = False
            at += 1
        elif char.isspace():
            close()
            at += 1
        elif (after := _continuation_end(text, at, is_open)) > at:
            close()
            is_continued = True
            at = after
        elif char == "#" and not is_open:
            at = _comment_end(text, at)
        elif (end := _quote_end(text, at, bare)) > at:
            if not is_open:
                is_quoted, is_literal = True, char == "'"
            is_open, is_continued = True, False
            buffer.append(_unescaped(text[at + 1 : end], char))
            bare = ""
            at = end + 1
        elif _is_stop(text, at, is_open, bare):
            close()
            words.append(Word(char, "stop"))
            at += 1
        else:
            if char == "\\" and at + 1 < len(text) and text[at + 1] in "\"'$#\\ &|;":
                at += 1
                char = text[at]
            is_open, is_continued = True, False
            buffer.append(char)
            bare = char
            at += 1
    close()
    return words


def _continuation_end(text: str, at: int, is_open: bool) -> int:
    """The position behind a line continuation that begins at ``at``; ``at`` when none does."""
    char, rest = text[at], text[at + 1 : at + 3]
    if char == "\\":
        if not rest or rest[0] == "\n":
            return at + 1
        if rest[0] in " \t\r\xa0\u3000":  # `my\ file` is an escaped space, `\ --flag` and ` \ word` are joined lines
            is_escaped_space = is_open and len(rest) == 2 and not rest[1].isspace() and rest[1] not in _DASHES + "#\\"
            return at if is_escaped_space else at + 1
        return at
    is_line_end = not text[at + 1 :].split("\n", 1)[0].strip() if char in "^`" else False
    return at + 1 if is_line_end and not is_open else at


def _comment_end(text: str, start: int) -> int:
    line_end = text.find("\n", start)
    line_end = len(text) if line_end < 0 else line_end
    before = text[text.rfind("\n", 0, start) + 1 : start]
    if "\n" in text.strip():
        is_joined = bool(_JOINED.search(before)) or before.rstrip().endswith("\\")
        if not before.strip() or not is_joined or _FLAG_AHEAD.match(text, line_end + 1):
            return line_end
    resumes = _RESUMES.search(text, start, line_end)
    return resumes.start() if resumes else line_end


def _quote_end(text: str, at: int, bare: str) -> int:
    """The closing quote's position; ``at`` when no quoted part begins here."""
    char = text[at].translate(_FULL_WIDTH)
    closers = _CLOSING.get(char)
    if closers is None or bare.isalnum():
        return at
    end = at + 1
    full_width = {} if text[at] in "'\"" else _FULL_WIDTH  # a plain quote is closed by its like alone
    while end < len(text) and text[end].translate(full_width) not in closers:
        end += 2 if text[end] == "\\" and char == '"' else 1
    if end >= len(text) or _SWALLOWED_FLAG.search(text, at, end):
        return at
    return end


def _unescaped(inner: str, quote: str) -> str:
    return re.sub(r'\\(["\\$`])', r"\1", inner).replace("\\\n", "") if quote == '"' else inner


def _is_stop(text: str, at: int, is_open: bool, bare: str) -> bool:
    char, following = text[at], text[at + 1 : at + 2]
    if char == ";":
        return True
    if char == "|":
        return not is_open
    return char == "&" and bare != ">" and (not is_open or following in ("", " ", "\n"))
