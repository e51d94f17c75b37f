"""Which characters of a rendered conversation are the assistant's. Pure; called by core/data/chat.py.

What is a target is decided by position in the rendered text, never by token id, and never by a {% generation %} mark
that few templates carry. The template is asked again with the assistant's words replaced by a probe; what stays the
same is template, system and user, what changes is the assistant's:

    rendered   <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nHello.<|im_end|>\\n
    probed     <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nQzx1xzQ<|im_end|>\\n
    span                                                             [Hello.<|im_end|>)

A span starts where the generation prompt ends, so that a training row continues the inference prompt exactly (a think
block that the template writes there is part of the answer), and ends after the end-of-turn token. Templates that
rewrite history do no harm: both renders hold the same turns. What cannot be told apart beyond doubt is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from core.data.shapes import RowError, texts_in

Message = dict[str, Any]
Render = Callable[..., str]  # (messages, tools=None, *, add_generation_prompt=False); raises what the template raises
Span = tuple[int, int]


def probe(name: str) -> str:
    """A word that no template trims, splits or capitalises, and no data holds."""
    return f"Qzx{name}xzQ"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFinder:
    """Finds answers for one template.

    Args:
        headers: (generation prompt, what the template itself writes after it before an answer), longest first.
        end_of_turn: what the template writes after the last answer; "" when it writes nothing.
        stop_tokens: texts of the tokens at which generation stops: an earlier answer may end in another one.
    """

    render: Render
    headers: tuple[tuple[str, str], ...]
    end_of_turn: str
    stop_tokens: frozenset[str]

    def find(self, messages: Sequence[Message], tools: list[Any] | None, text: str) -> dict[int, Span]:
        """Span of every assistant message in ``text`` = render(messages, tools), by message index.

        Raises:
            RowError: an answer cannot be told from what surrounds it.
        """
        answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        spans = self._all_at_once(messages, tools, text, answers)
        if spans is None:
            spans = {at: self._one(messages, tools, text, at) for at in answers}
        border = 0
        for at, (begin, end) in spans.items():
            if not border <= begin < end <= len(text):
                raise _uncertain(at)
            border = end
        return spans

    def _all_at_once(
        self, messages: Sequence[Message], tools: list[Any] | None, text: str, answers: Sequence[int]
    ) -> dict[int, Span] | None:
        """One more render for a whole conversation; None when it proves nothing.

        No answer holds the end-of-turn text, so the first one behind a header closes that answer; and everything
        outside the answers is compared, character by character, with the render that has none of them.
        """
        end_of_turn = self.end_of_turn
        if not end_of_turn or any(end_of_turn in words for at in answers for words in texts_in(messages[at])):
            return None
        probes = {at: probe(str(at)) for at in answers}
        other = self._render_or_none(_replace(messages, probes), tools)
        if other is None:
            return None
        spans: dict[int, Span] = {}
        here = there = 0  # how far text and the other render are accounted for
        for at, word in probes.items():
            found = other.find(word, there)
            answer = self._begin_before(other, found)
            begin = here + answer - there
            end = text.find(end_of_turn, begin)
            after = found + len(word)
            if found < 0 or answer < there or end < 0 or not other.startswith(end_of_turn, after):
                return None
            if not text.startswith(other[there:answer], here):
                return None
            spans[at] = (begin, end + len(end_of_turn))
            here, there = end, after
        return spans if text[here:] == other[there:] else None

    def _one(self, messages: Sequence[Message], tools: list[Any] | None, text: str, at: int) -> Span:
        """The span of one answer: by replacing it alone, or by rendering the conversation up to it and through it."""
        word = probe(str(at))
        other = self._render_or_none(_replace(messages, {at: word}), tools)
        if other is not None and other.count(word) == 1:
            found = other.index(word)
            begin, rest = self._begin_before(other, found), other[found + len(word) :]
            end = len(text) - len(rest)
            if begin >= 0 and begin < end and text.startswith(other[:begin]) and text.endswith(rest):
                return begin, end + len(self._closing(rest))
        before = self._render_or_none(messages[:at], tools, add_generation_prompt=True)
        through = self._render_or_none(messages[: at + 1], tools)
        if not before or not through or not text.startswith(before) or not text.startswith(through):
            raise _uncertain(at)
        closing = text.rfind(self.end_of_turn, len(before), len(through)) if self.end_of_turn else -1
        return len(before), closing + len(self.end_of_turn) if closing >= 0 else len(through)

    def _begin_before(self, other: str, found: int) -> int:
        """Where generation starts before the probe at ``found``; -1 when no known header stands there."""
        for header, lead in self.headers:
            if other.endswith(header + lead, 0, max(found, 0)):
                return found - len(lead)
        return -1

    def _closing(self, rest: str) -> str:
        """The end of turn with which ``rest`` begins. What follows an earlier answer may also be the next header, so
        besides the template's own end of turn only tokens at which generation stops count."""
        if self.end_of_turn and rest.startswith(self.end_of_turn):
            return self.end_of_turn
        return next((token for token in self.stop_tokens if token and rest.startswith(token)), "")

    def _render_or_none(
        self, messages: Sequence[Message], tools: list[Any] | None, *, add_generation_prompt: bool = False
    ) -> str | None:
        try:
            return self.render(list(messages), tools, add_generation_prompt=add_generation_prompt)
        except Exception:  # a template is a foreign program; it may insist on the turns that were replaced
            return None


def find_headers(render: Render) -> tuple[tuple[str, str], ...]:
    """(generation prompt, template text after it) of a last and of an earlier answer, longest first.

    Some generation prompts open a think block that earlier turns do not have, so a header is what a real turn and the
    generation prompt have in common.
    """
    ask, answer = {"role": "user", "content": probe("user")}, {"role": "assistant", "content": probe("assistant")}
    more = [{"role": "user", "content": probe("later")}, {"role": "assistant", "content": probe("end")}]
    asked, prompt = render([ask]), render([ask], None, add_generation_prompt=True)
    headers = []
    for turns in ([ask, answer], [ask, answer, *more]):
        try:
            text = render(turns)
        except Exception:  # a template of one turn only has no earlier answers
            continue
        found, words = text.find(answer["content"]), text.find(ask["content"]) + len(ask["content"])
        common = max(words, _common_length(prompt, text[:found]))
        start = max(words, min(common, _common_length(asked, text)))
        headers.append((text[start:common], text[common:found]))
    return tuple(sorted(dict.fromkeys(headers), key=lambda pair: -len(pair[0] + pair[1])))


def _common_length(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def _replace(messages: Sequence[Message], words: dict[int, str]) -> list[Message]:
    return [
        {"role": "assistant", "content": words[at]} if at in words else message for at, message in enumerate(messages)
    ]


def _uncertain(at: int) -> RowError:
    return RowError("template", f"in this chat template the answer in message {at + 1} cannot be told from the rest")
