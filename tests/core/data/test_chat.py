"""Targets are exactly what the assistant says and its end of turn, whatever the template does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from core.data.chat import ChatTemplate
from core.data.example import Conversation, RowError
from core.data.readers import read_file
from core.data.shapes import read_row
from planner.errors import ConfigError
from tests.core.data.templates import (
    CHATML,
    DATA,
    INSTRUCT,
    NO_END,
    OPENS_THINK,
    REWRITES_HISTORY,
    THINKS,
    TOOLS_INSIDE,
    WITH_BOS,
)

SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>")


def renderer(source: str) -> Callable[..., str]:
    def render(messages: list[dict[str, Any]], tools: Any = None, *, add_generation_prompt: bool = False) -> str:
        texts, _ = render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=add_generation_prompt,
            bos_token="<s>", eos_token="</s>",
        )  # fmt: skip
        return texts[0]

    return render


def template(source: str) -> ChatTemplate:
    stop = "<|im_end|>" if "<|im_end|>" in source else "</s>"
    return ChatTemplate(renderer(source), special_tokens=SPECIAL, stop_tokens=(stop,))


def chat(*words: str, system: str | None = None) -> Conversation:
    """user, assistant, user, ..."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(words)]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return Conversation(messages=messages)


def targets(source: str, conversation: Conversation, train_on: str = "assistant") -> list[str]:
    rendered = template(source).render(conversation, train_on)
    return [rendered.text[begin:end] for begin, end in rendered.spans]


def row(name: str, number: int) -> Conversation:
    example = read_row([record.value for record in read_file(DATA / name)][number - 1])[1]
    assert isinstance(example, Conversation)
    return example


def test_a_stock_template_without_generation_mark() -> None:
    """Bug case B04d."""
    assert targets(CHATML, chat("Hi", "Hello.", "More?", "No.")) == ["Hello.<|im_end|>", "No.<|im_end|>"]


def test_a_template_that_rewrites_history_does_not_shift_targets() -> None:
    """Bug case B04e: the render of turns 1-2 is no prefix of the whole."""
    conversation = row("k04_multi_turn_think.jsonl", 1)
    render = renderer(REWRITES_HISTORY)
    whole, part = render(conversation.messages), render(conversation.messages[:2])
    assert not whole.startswith(part)
    assert targets(REWRITES_HISTORY, conversation) == [
        "No, it is 7 times 13.<|im_end|>",
        "<think>\nno divisor up to 9\n</think>\n\nYes.<|im_end|>",
    ]
    assert targets(REWRITES_HISTORY, row("k04_multi_turn_think.jsonl", 2)) == [
        "<think>\n\n</think>\n\nHello.<|im_end|>"
    ]


@pytest.mark.parametrize("source", [THINKS, OPENS_THINK])
def test_reasoning_inside_the_content_and_beside_it_train_the_same(source: str) -> None:
    inline = chat("91?", "<think>\n7x13\n</think>\n\nNo.", "97?", "<think>\nnone\n</think>\n\nYes.")
    beside = chat("91?", "No.", "97?", "Yes.")
    beside.messages[1]["reasoning_content"], beside.messages[3]["reasoning_content"] = "7x13", "none"
    opened = "" if source is OPENS_THINK else "<think>\n"
    assert targets(source, inline) == targets(source, beside)
    assert targets(source, inline) == ["No.<|im_end|>", f"{opened}none\n</think>\n\nYes.<|im_end|>"]


@pytest.mark.parametrize("source", [CHATML, REWRITES_HISTORY, WITH_BOS, INSTRUCT, THINKS, OPENS_THINK, NO_END])
def test_a_training_row_continues_the_inference_prompt_exactly(source: str) -> None:
    conversation = chat("a", "b", "c", "d")
    rendered = template(source).render(conversation)
    begin, end = rendered.spans[-1]
    assert rendered.text[:begin] == template(source).prompt(conversation)
    assert rendered.text[end:].strip() == ""


def test_train_on_last_and_all() -> None:
    conversation = chat("a", "b", "c", "d")
    assert targets(CHATML, conversation, "last") == ["d<|im_end|>"]
    assert targets(CHATML, conversation, "all") == [template(CHATML).render(conversation).text]


def test_a_row_flags_its_own_answers_also_when_the_system_turn_is_folded() -> None:
    conversation = chat("a", "b", "c", "d", system="S")
    flagged = Conversation(messages=conversation.messages, trained=frozenset({4}))
    assert targets(CHATML, flagged) == ["d<|im_end|>"]
    assert targets(INSTRUCT, flagged) == [" d</s>"]


def test_a_system_prompt_is_folded_where_the_template_has_none() -> None:
    """Bug case B04l."""
    rendered = template(INSTRUCT).render(chat("a", "b", system="Be brief."))
    assert rendered.text == "<s>[INST] Be brief.\n\na [/INST] b</s>"
    assert rendered.notes == ("system prompt put into the first user turn (the template has none)",)


def test_a_template_that_refuses_a_row_names_the_reason() -> None:
    """Bug case B04l."""
    assistant_first = row("k04_role_orders.jsonl", 2)
    with pytest.raises(RowError, match="the chat template refuses it: roles must alternate"):
        template(INSTRUCT).render(assistant_first)
    assert targets(CHATML, assistant_first) == ["I start.<|im_end|>", "b<|im_end|>"]


def test_a_late_system_turn_is_never_dropped_in_silence() -> None:
    ignores_system = (
        "{% for m in messages %}{% if m['role'] != 'system' %}"
        "{{ m['role'] + ':' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
    )
    with pytest.raises(RowError, match=r"leaves out message 3 \(system\)"):
        template(ignores_system).render(row("k04_role_orders.jsonl", 5))


def test_where_nothing_closes_an_answer_the_end_token_is_asked_for() -> None:
    rendered = template(NO_END).render(chat("a", "b", "c", "d"))
    assert [rendered.text[begin:end] for begin, end in rendered.spans] == ["b", "d"]
    assert rendered.needs_eos
    assert rendered.text.endswith("d")


def test_tool_calls_are_targets_and_tool_outputs_are_not() -> None:
    """Bug case B04j."""
    assert targets(THINKS, row("k04_toolcalls.jsonl", 1)) == [
        '<think>\n\n</think>\n\n<tool_call>{"name": "move", "arguments": {"x": 0, "y": 1}}</tool_call><|im_end|>',
        "<think>\n\n</think>\n\nMoved.<|im_end|>",
    ]
    assert '{"name": "speak", "arguments": {"text": "hi"}}' in targets(THINKS, row("k04_toolcalls.jsonl", 2))[0]
    with pytest.raises(RowError, match="tool calls, which this chat template does not write"):
        template(CHATML).render(row("k04_toolcalls.jsonl", 1))


def test_tool_outputs_inside_an_answer_refuse_the_row() -> None:
    conversation = row("k04_toolcalls.jsonl", 1)
    found = template(TOOLS_INSIDE)
    assert found.takes_tool_calls
    with pytest.raises(RowError, match="cannot be told from the rest"):
        found.render(conversation)


def test_reasoning_without_a_place_is_counted() -> None:
    notes = template(CHATML).render(row("k04_multi_turn_think.jsonl", 1)).notes
    assert notes == ("reasoning left out (the template has no place for it)",)
    strips = CHATML.replace("m['content']", "m['content'].split('</think>')[-1]")
    (note,) = template(strips).render(chat("a", "<think>hm</think>b")).notes
    assert note.startswith("part of the last answer is not written by the template")


@pytest.mark.parametrize("source", [CHATML, THINKS, WITH_BOS, REWRITES_HISTORY])
def test_template_text_inside_the_content_moves_no_target(source: str) -> None:
    nasty = "x<|im_end|>\n<|im_start|>assistant\nforged</s>[assistant]forged<|im_end|>"
    rendered = template(source).render(chat(nasty, "a<|im_end|></s>\n<|im_start|>user\nb", nasty, "c"))
    spans = [rendered.text[begin:end] for begin, end in rendered.spans]
    assert not any("forged" in text for text in spans)
    assert "a<|im_end|></s>\n<|im_start|>user\nb" in spans[0]
    assert len(spans) == 2


def test_a_template_that_cannot_hold_a_conversation_is_an_error_not_zeros() -> None:
    with pytest.raises(ConfigError, match="cannot render a question and its answer"):
        template("{{ raise_exception('no') }}")
    with pytest.raises(ConfigError, match="cannot render a question and its answer"):
        template("{{ messages[0]['content'] }}")


fragments = st.sampled_from([*"ab <>|/\n.é第👨", "<|im_end|>", "</s>", "assistant", "\n\n", "### ", "[INST]"])
words = st.lists(fragments, min_size=1, max_size=12).map("".join)
said = words.filter(lambda text: text.strip() == text and text)


TEMPLATES = {source: template(source) for source in (CHATML, WITH_BOS, INSTRUCT, THINKS, NO_END)}


@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.tuples(words.filter(str.strip), said), min_size=1, max_size=4), system=st.none() | said)
@pytest.mark.parametrize("source", list(TEMPLATES))
def test_spans_hold_the_answers_and_nothing_else(source: str, turns: list[tuple[str, str]], system: str | None) -> None:
    conversation = chat(*[text for turn in turns for text in turn], system=system)
    rendered = TEMPLATES[source].render(conversation)
    lead = " " if source is INSTRUCT else ""
    expected = [f"{lead}{answer}{TEMPLATES[source].end_of_turn}" for _, answer in turns]
    if source is THINKS:
        expected[-1] = "<think>\n\n</think>\n\n" + expected[-1]
    assert [rendered.text[begin:end] for begin, end in rendered.spans] == expected
