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

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from core.data.example import RowError, texts_in

Message = dict[str, Any]
Render = Callable[..., str]  # (messages, tools=None, *, add_generation_prompt=False); raises what the template raises
Span = tuple[int, int]
_LONGEST_TAG = 64
_TAG = re.compile(rf"<[^<>\n]{{1,{_LONGEST_TAG - 2}}}>|\[[^\[\]\n]{{1,{_LONGEST_TAG - 2}}}\]")


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
        silent = self._with_silent_tools(messages, tools, text)
        spans = self._all_at_once(messages, tools, text, answers)
        if spans is None or not all(text[begin:end] in silent for begin, end in spans.values()):
            spans = {}
            for at in answers:
                alone = self._one_alone(messages, tools, text, at)
                spans[at] = next(((begin, end) for begin, end in alone if text[begin:end] in silent), (-1, -1))
        border, outside = 0, ""
        for at, (begin, end) in spans.items():
            if not border <= begin < end <= len(text):
                raise _uncertain(at)
            outside, border = f"{outside}\0{text[border:begin]}", end
        outside += "\0" + text[border:]
        for at, message in enumerate(messages):
            if message["role"] in ("system", "user") and message["content"].strip() not in outside:
                raise _uncertain(at)
        return spans

    def _with_silent_tools(self, messages: Sequence[Message], tools: list[Any] | None, text: str) -> str:
        """The text with other words from the tools: some templates write tool outputs into the assistant's turn, and an
        answer is what does not change with them."""
        words = {at: probe(f"{at}tool") for at, message in enumerate(messages) if message["role"] == "tool"}
        changed = [{**message, "content": words[at]} if at in words else message for at, message in enumerate(messages)]
        return text if not words else self._render_or_none(changed, tools) or ""

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
            begin = self._begin(text, here, other, there, found) if found >= 0 else -1
            end = text.find(end_of_turn, begin)
            after = found + len(word)
            if begin < 0 or end < 0 or not other.startswith(end_of_turn, after):
                return None
            spans[at] = (begin, end + len(end_of_turn))
            here, there = end, after
        return spans if text[here:] == other[there:] else None

    def _one_alone(self, messages: Sequence[Message], tools: list[Any] | None, text: str, at: int) -> Iterator[Span]:
        """Possible spans of one answer: by replacing it alone, or by rendering up to it and through it."""
        word = probe(str(at))
        other = self._render_or_none(_replace(messages, {at: word}), tools) or ""
        if other.count(word) == 1:
            found = other.index(word)
            begin, rest = self._begin(text, 0, other, 0, found), other[found + len(word) :]
            end = len(text) - len(rest)
            if 0 <= begin < end and text.endswith(rest):
                yield begin, end + len(self._closing(rest))
        before = self._render_or_none(messages[:at], tools, add_generation_prompt=True)
        through = self._render_or_none(messages[: at + 1], tools)
        if before and through and text.startswith(before) and text.startswith(through):
            closing = text.rfind(self.end_of_turn, len(before), len(through)) if self.end_of_turn else -1
            yield len(before), closing + len(self.end_of_turn) if closing >= 0 else len(through)

    def _begin(self, text: str, here: int, other: str, there: int, found: int) -> int:
        """Where generation begins in ``text``, given that text[here:] and other[there:found] are alike up to there; -1
        when they are not. Within the header itself they may part: a generation prompt that opens and closes an empty
        think block has only its beginning in common with an answer that thinks."""
        for header, lead in self.headers:
            if other.endswith(header + lead, there, found):
                literal = other[there : found - len(lead)]
                if text.startswith(literal, here):
                    return here + len(literal)
                common = _common_length(literal, text[here : here + len(literal) + _LONGEST_TAG])
                return here + common if common >= len(literal) - len(header) else -1
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a template writes around an answer, learnt from two conversations of probes."""

    headers: tuple[tuple[str, str], ...]  # AnswerFinder.headers
    end_of_turn: str


def learn_turn(render: Render, special_tokens: Iterable[str], stop_tokens: Iterable[str]) -> Turn:
    """Headers and end of turn, of a last and of an earlier answer.

    A header is what a real turn and the generation prompt have in common, because some generation prompts open a think
    block that earlier turns do not have. The end of turn is what closes a last and an earlier answer alike, because
    some templates close the whole conversation once more; where nothing is common, what closes the last. Nothing after
    a token at which generation stops belongs to it.
    """
    ask, answer = {"role": "user", "content": probe("user")}, {"role": "assistant", "content": probe("assistant")}
    later, end = {"role": "user", "content": probe("later")}, {"role": "assistant", "content": probe("end")}
    special = re.compile("|".join(re.escape(token) for token in special_tokens if token) or r"(?!)")
    asked, prompt = render([ask]), render([ask], None, add_generation_prompt=True)
    single = render([ask, answer])
    texts = [single]
    closing = single[single.rindex(answer["content"]) + len(answer["content"]) :]
    try:
        texts.append(render([ask, answer, later, end]))
    except Exception:  # a template of one turn only
        common = closing
    else:
        rest = texts[1][texts[1].index(answer["content"]) + len(answer["content"]) :].split(later["content"])[0]
        common = closing[: _common_length(closing, rest)]
    headers: dict[tuple[str, str], None] = {}
    for text in texts:
        found, words = text.index(answer["content"]), text.index(ask["content"]) + len(ask["content"])
        until = max(words, _common_length(prompt, text[:found]))
        start = max(words, min(until, _common_length(asked, text)))
        headers[(text[start:until], text[until:found])] = None
    end_of_turn = _until_last(special, common) or _until_last(special, closing) or closing.rstrip()
    stops = [at + len(token) for token in stop_tokens if token and (at := end_of_turn.find(token)) >= 0]
    return Turn(
        headers=tuple(sorted(headers, key=lambda pair: -len(pair[0] + pair[1]))),
        end_of_turn=end_of_turn[: min(stops)] if stops else end_of_turn,
    )


def _until_last(special: re.Pattern[str], text: str) -> str:
    matches = list(special.finditer(text))
    return text[: matches[-1].end()] if matches else ""


def _common_length(one: str, other: str) -> int:
    """Length of the common beginning, not ending inside a tag: "<think>" and "</think>" have nothing in common."""
    length = next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    for text in (one, other):
        for tag in _TAG.finditer(text):
            if tag.start() < length < tag.end():
                length = tag.start()
    return length


def _replace(messages: Sequence[Message], words: dict[int, str]) -> list[Message]:
    return [
        {"role": "assistant", "content": words[at]} if at in words else message for at, message in enumerate(messages)
    ]


def _uncertain(at: int) -> RowError:
    return RowError("template", f"in this chat template the answer in message {at + 1} cannot be told from the rest")
