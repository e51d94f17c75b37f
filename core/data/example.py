"""What a row is once it is understood: a conversation, a prompt with its completion, a document, or tokens. Pure.

Made by core/data/shapes.py; templates, tokenizer and intake read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


class RowError(ValueError):
    """A row that cannot be used. ``kind`` groups equal causes for the report."""

    def __init__(self, kind: str, reason: str) -> None:
        self.kind = kind
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    messages: list[dict[str, Any]]  # role, content (never null), tool_calls, reasoning..., as chat templates read them
    tools: list[Any] | None = None
    trained: frozenset[int] | None = None  # indices of assistant messages that a row flags itself; None: no flags
    notes: tuple[str, ...] = ()  # what was mended, counted in the report


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    prompt: str
    completion: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """Tokenised elsewhere: nothing is rendered, added or taken away."""

    tokens: list[int]
    targets: list[bool]
    notes: tuple[str, ...] = ()


Example = Conversation | Continuation | Document | TokenRow


def texts_of(example: Example) -> list[str]:
    """Everything a row says, in parts."""
    if isinstance(example, Conversation):
        return list(texts_in(example.messages))
    if isinstance(example, TokenRow):
        return []
    return [example.text] if isinstance(example, Document) else [example.prompt, example.completion]


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a message, a list of them or an example's mapping, tool calls included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
