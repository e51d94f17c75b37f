"""Conversations rendered by the model's own chat template. Torch-free; called by prepare with the tokenizer's template.

Before any row, the template is probed for what it can hold: a system turn, tool calls, reasoning, an end of turn.
What it has no place for is moved or left out with a note that the report counts, or refuses the row. Nothing a row
says is lost in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from core.data.shapes import Conversation, RowError
from core.data.spans import AnswerFinder, Message, Render, Span, find_headers, probe
from planner.errors import ConfigError

_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    text: str
    spans: tuple[Span, ...]  # characters to be predicted, ascending
    needs_eos: bool  # the template closes no answer: the caller appends the tokenizer's end token as a target
    notes: tuple[str, ...] = ()


class ChatTemplate:
    """One template, probed.

    Args:
        render: (messages, tools=None, *, add_generation_prompt=False) -> text.
        special_tokens: texts of all special tokens.
        stop_tokens: texts of those at which generation stops.
    Raises:
        ConfigError: the template cannot render a question and its answer.
    """

    def __init__(self, render: Render, *, special_tokens: Iterable[str], stop_tokens: Iterable[str]) -> None:
        self._render = render
        system, ask, answer = ({"role": role, "content": probe(role)} for role in ("system", "user", "assistant"))
        try:
            text = render([ask, answer])
            headers = find_headers(render)
            rest = text[text.rindex(answer["content"]) + len(answer["content"]) :]
        except Exception as error:  # a template is a foreign program: it may raise anything
            raise ConfigError(
                "The model's chat template cannot render a question and its answer.",
                why=_first_line(error),
                fix="Choose a chat or instruct model, or train on raw text.",
            ) from error
        self.end_of_turn = _first_end(rest, special_tokens)
        self.takes_system = self._holds([system, ask, answer], system["content"])
        thought = probe("thought")
        self.reasoning_key = next(
            (key for key in _REASONING_KEYS if self._holds([ask, {**answer, key: thought}], thought)), None
        )
        self._calls_as_text = self._find_call_form(ask)
        self._finder = AnswerFinder(
            render=render, headers=headers, end_of_turn=self.end_of_turn, stop_tokens=frozenset(stop_tokens)
        )

    @property
    def takes_tool_calls(self) -> bool:
        return self._calls_as_text is not None

    def render(self, conversation: Conversation, train_on: str = "assistant") -> Rendered:
        """Text and targets of one conversation.

        Args:
            train_on: "assistant" every answer, "last" the last answer, "all" every token.
        Raises:
            RowError: the template refuses the row, leaves a turn out, or hides where an answer begins.
        """
        messages, notes = self._fit(conversation)
        text = self._try(messages, conversation.tools)
        notes += _left_out(messages, text)
        if train_on == "all":
            spans = [(0, len(text))]
        else:
            found = self._finder.find(messages, conversation.tools, text)
            moved = len(conversation.messages) - len(messages)  # 1 when the system turn was folded into the next
            flagged = conversation.trained
            spans = [span for at, span in found.items() if flagged is None or at + moved in flagged]
            if train_on == "last":
                spans = spans[-1:]
        needs_eos = not self.end_of_turn and bool(spans)
        if needs_eos:
            text = text.rstrip()
            spans = [(begin, min(end, len(text))) for begin, end in spans]
        return Rendered(
            text=text, spans=tuple(spans), needs_eos=needs_eos, notes=(*conversation.notes, *dict.fromkeys(notes))
        )

    def prompt(self, conversation: Conversation) -> str:
        """The inference prompt for the last answer: everything before it, then the generation prompt."""
        messages, _ = self._fit(conversation)
        return self._try(messages[:-1], conversation.tools, add_generation_prompt=True)

    def _fit(self, conversation: Conversation) -> tuple[list[Message], list[str]]:
        """The messages as this template reads them; what had to give way becomes a note."""
        messages, notes = [dict(message) for message in conversation.messages], []
        if not self.takes_system and messages[0]["role"] == "system":
            if len(messages) < 2 or messages[1]["role"] != "user":
                raise RowError("template", "the template has no system turn, and no user turn follows to hold it")
            system = messages.pop(0)
            messages[0]["content"] = f"{system['content']}\n\n{messages[0]['content']}"
            notes.append("system prompt put into the first user turn (the template has none)")
        for message in messages:
            thoughts = [message.pop(key) for key in _REASONING_KEYS if key in message]
            if thoughts and self.reasoning_key:
                message[self.reasoning_key] = thoughts[0]
            elif thoughts:
                notes.append("reasoning left out (the template has no place for it)")
            if "tool_calls" in message:
                if self._calls_as_text is None:
                    raise RowError("template", "the row has tool calls, which this chat template does not write")
                if self._calls_as_text:
                    message["tool_calls"] = [_with_text_arguments(call) for call in message["tool_calls"]]
        return messages, notes

    def _find_call_form(self, ask: Message) -> bool | None:
        """True: arguments must be JSON text; False: an object; None: the template writes no tool calls."""
        name, value = probe("name"), probe("value")
        call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": {"key": value}}}
        for as_text in (False, True):
            used = _with_text_arguments(call) if as_text else call
            message = {"role": "assistant", "content": "", "tool_calls": [used]}
            if self._holds([ask, message], name) and self._holds([ask, message], value):
                return as_text
        return None

    def _holds(self, messages: list[Message], text: str) -> bool:
        try:
            return text in self._render(messages)
        except Exception:  # the answer to the probe is no
            return False

    def _try(self, messages: list[Message], tools: list[Any] | None, *, add_generation_prompt: bool = False) -> str:
        try:
            return self._render(messages, tools, add_generation_prompt=add_generation_prompt)
        except Exception as error:
            raise RowError("template", f"the chat template refuses it: {_first_line(error)}") from None


def _left_out(messages: list[Message], text: str) -> list[str]:
    """Notes on text beside a tool call that the template does not write.

    Raises: RowError for a user or system turn that it does not write.
    """
    notes = []
    for number, message in enumerate(messages, 1):
        if message["content"].strip() in text:
            continue
        if message["role"] in ("user", "system"):
            raise RowError("template", f"the chat template leaves out message {number} ({message['role']})")
        if message.get("tool_calls"):
            notes.append("text beside a tool call left out (the template writes only the call)")
    return notes


def _first_end(rest: str, special_tokens: Iterable[str]) -> str:
    """What closes an answer at the very end of a conversation: up to the first special token, or all of it."""
    ends = [at + len(token) for token in special_tokens if token and (at := rest.find(token)) >= 0]
    return rest[: min(ends)] if ends else rest.rstrip()


def _with_text_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def _first_line(error: BaseException) -> str:
    return re.sub(r"\s+", " ", str(error).strip() or type(error).__name__)[:300]
