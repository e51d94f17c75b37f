"""Errors of the user's making as words on the page. Used by both tabs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from planner.errors import LongfitError


def error_words(error: LongfitError) -> str:
    """What, why and what to do, safe inside HTML."""
    return " ".join(escape(text) for text in (error.what, error.why, error.fix) if text)


def error_html(error: LongfitError, *, word: str) -> str:
    """Where a state or a verdict would stand."""
    return (
        f'<div role="status" class="verdict role-error"><strong class="word">{word}</strong> '
        f"<span>{error_words(error)}</span></div>"
    )


@contextmanager
def shown_to_the_user() -> Iterator[None]:
    """A LongfitError inside becomes a message in the corner of the page, without a traceback."""
    import gradio as gr

    try:
        yield
    except LongfitError as error:
        raise gr.Error(error_words(error), print_exception=False) from error
