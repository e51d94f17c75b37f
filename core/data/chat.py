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

from core.data.example import Conversation, RowError
from core.data.spans import AnswerFinder, Message, Render, Span, learn_turn, probe
from planner.errors import ConfigError

_THINK_TAG = re.compile(r"</?think>")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    text: str
    spans: tuple[Span, ...]  # characters to be predicted, ascending
    needs_eos: bool  # the template closes no answer: the caller appends the tokenizer's end token as a target
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CallForm:
    as_text: bool  # arguments as JSON text, not as an object
    null: bool  # empty content beside a call as null, not as ""

    def shape(self, message: Message) -> Message:
        calls = message["tool_calls"]
        if self.as_text:
            calls = [{**call, "function": _with_text_arguments(call["function"])} for call in calls]
        content = None if self.null and not message["content"] else message["content"]
        return {**message, "content": content, "tool_calls": calls}


def _with_text_arguments(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}


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
        special_tokens, stop_tokens = tuple(special_tokens), tuple(stop_tokens)
        self._render = render
        system, ask, answer = ({"role": role, "content": probe(role)} for role in ("system", "user", "assistant"))
        try:
            turn = learn_turn(render, special_tokens, stop_tokens)
        except Exception as error:  # a template is a foreign program: it may raise anything
            raise ConfigError(
                "The model's chat template cannot render a question and its answer.",
                why=_first_line(error),
                fix="Choose a chat or instruct model, or train on raw text.",
            ) from error
        self.end_of_turn = turn.end_of_turn
        self.takes_system = self._holds([system, ask, answer], system["content"])
        thought = probe("thought")
        self.reasoning_key = next(
            (key for key in _REASONING_KEYS if self._holds([ask, {**answer, key: thought}], thought)), None
        )
        self._call_form = self._find_call_form(ask)
        self._finder = AnswerFinder(
            render=render, headers=turn.headers, end_of_turn=self.end_of_turn, stop_tokens=frozenset(stop_tokens)
        )

    @property
    def takes_tool_calls(self) -> bool:
        return self._call_form is not None

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
        for at, message in enumerate(messages):
            thoughts = [message.pop(key) for key in _REASONING_KEYS if key in message]
            if thoughts and self.reasoning_key:
                message[self.reasoning_key] = thoughts[0]
            elif thoughts:
                notes.append("reasoning left out (the template has no place for it)")
            if "tool_calls" in message:
                if self._call_form is None:
                    raise RowError("template", "the row has tool calls, which this chat template does not write")
                messages[at] = self._call_form.shape(message)
        return messages, notes

    def _find_call_form(self, ask: Message) -> CallForm | None:
        """How this template wants tool calls; None when it writes none.

        Some want arguments as JSON text, and some write an answer beside the calls unless the content is null: the
        form that is written whole and shortest is the right one.
        """
        name, value = probe("name"), probe("value")
        call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": {"key": value}}}
        forms = []
        for form in (CallForm(as_text=as_text, null=null) for as_text in (False, True) for null in (False, True)):
            message = {"role": "assistant", "content": "", "tool_calls": [call]}
            try:
                text = self._render([ask, form.shape(message)])
            except Exception:  # not the form for this template
                continue
            if name in text and value in text:
                forms.append((form.as_text, len(text), form.null, form))
        return min(forms)[-1] if forms else None

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
    """Notes on what an assistant says and the template does not write.

    Raises: RowError for a user or system turn that it does not write.
    """
    notes = []
    for number, message in enumerate(messages, 1):
        said = [message["content"] or "", *(message[key] for key in _REASONING_KEYS if key in message)]
        parts = [part.strip() for words in said for part in _THINK_TAG.split(words)]  # templates write these tags anew
        if all(part in text for part in parts):
            continue
        if message["role"] in ("user", "system"):
            raise RowError("template", f"the chat template leaves out message {number} ({message['role']})")
        if message["role"] == "assistant":
            which = "the last" if number == len(messages) else "an earlier"
            notes.append(f"part of {which} answer is not written by the template (reasoning, text beside a call)")
    return notes


def _first_line(error: BaseException) -> str:
    return re.sub(r"\s+", " ", str(error).strip() or type(error).__name__)[:300]
