"""What rows mean: aliases, nulls, roles, tool calls, and the reason when a row means nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data.example import Continuation, Conversation, Document, RowError, TokenRow
from core.data.readers import read_file
from core.data.shapes import read_row

DATA = Path(__file__).parents[2] / "data"


def turns(value: Any, **options: Any) -> list[tuple[str, str]]:
    _, example = read_row(value, **options)
    assert isinstance(example, Conversation)
    return [(message["role"], message["content"]) for message in example.messages]


def fates(name: str) -> list[str]:
    """ "ok" or the reason, for each row of a file of the bug cases."""
    result = []
    for record in read_file(DATA / name):
        if record.kind == "row":
            try:
                read_row(record.value)
                result.append("ok")
            except RowError as error:
                result.append(str(error))
    return result


def test_alpaca_nulls_are_no_text() -> None:
    """Bug case B04k."""
    assert fates("k04_alpaca_nulls.jsonl") == [
        "ok", "the answer is blank", "the prompt is blank", "ok", "the answer is blank", "ok",
    ]  # fmt: skip
    assert turns({"instruction": "Name a metal.", "input": None, "output": "Iron."}) == [
        ("user", "Name a metal."),
        ("assistant", "Iron."),
    ]
    assert turns({"instruction": "The word None", "input": "None", "output": "None of them."})[0] == (
        "user",
        "The word None\nNone",
    )


def test_types_that_flip_keep_what_can_be_kept() -> None:
    """Bug case B04i."""
    assert fates("k04_type_flip.jsonl") == [
        "ok",
        "ok",
        "'output' is a list, not text",
        "'instruction' is a list, not text",
        "ok",
        "the list of messages is a text",
        "the list of messages is empty",
        "message 1 has no content",
        "the row is a list, not an object with keys",
        "the row is a text, not an object with keys",
        "ok",
    ]
    assert turns({"instruction": "n", "output": 42})[1] == ("assistant", "42")


def test_role_orders() -> None:
    """Bug case B04l: a verdict for each row."""
    rows = [record.value for record in read_file(DATA / "k04_role_orders.jsonl")]
    assert turns(rows[0])[0] == ("system", "Be brief.")
    assert [role for role, _ in turns(rows[1])] == ["assistant", "user", "assistant"]
    assert turns(rows[2]) == [("user", "one\n\ntwo"), ("assistant", "b")]
    assert read_row(rows[2])[1].notes == ("neighbours of the same role joined",)
    assert turns(rows[3]) == [("user", "ends with user"), ("assistant", "b")]
    assert read_row(rows[3])[1].notes == ("unanswered end cut",)
    assert [role for role, _ in turns(rows[4])] == ["user", "assistant", "system", "user", "assistant"]
    with pytest.raises(RowError, match="no message is the assistant's"):
        read_row(rows[5])
    assert turns(rows[6]) == [("user", "wrong role word"), ("assistant", "b")]
    assert turns(rows[7]) == [("system", "S"), ("user", "sharegpt row"), ("assistant", "b")]
    assert read_row(rows[7])[0] == "sharegpt"


def test_a_column_that_turns_from_null_to_text_is_no_matter() -> None:
    assert set(fates("k04_null_then_str.jsonl")) == {"ok"}


def test_tool_call_arguments_stay_their_own() -> None:
    """Bug case B04j: no foreign keys, text and object alike, null content empty."""
    rows = [record.value for record in read_file(DATA / "k04_toolcalls.jsonl")]
    calls = [read_row(row)[1].messages[1]["tool_calls"][0]["function"]["arguments"] for row in rows]
    assert calls == [{"x": 0, "y": 1}, {"text": "hi"}]
    as_text = json.loads(json.dumps(rows[0]))
    as_text["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"x": 0, "y": 1}'
    assert read_row(as_text)[1] == read_row(rows[0])[1]
    assert read_row(rows[0])[1].messages[1]["content"] == ""


def test_a_sharegpt_function_call_becomes_a_tool_call() -> None:
    row = {"conversations": [
        {"from": "human", "value": "weather?"},
        {"from": "function_call", "value": '{"name": "get", "arguments": {"city": "Ulm"}}'},
        {"from": "observation", "value": "rain"},
        {"from": "gpt", "value": "It rains."},
    ]}  # fmt: skip
    messages = read_row(row)[1].messages
    assert messages[1]["tool_calls"][0]["function"] == {"name": "get", "arguments": {"city": "Ulm"}}
    assert messages[2] == {"role": "tool", "content": "rain"}


def test_system_precedence_row_over_config() -> None:
    row = {"instruction": "a", "output": "b"}
    assert turns(row, system="config")[0] == ("system", "config")
    assert turns({**row, "system": "row"}, system="config")[0] == ("system", "row")
    chat = {"messages": [{"role": "system", "content": "first"}, {"role": "user", "content": "a"},
                         {"role": "assistant", "content": "b"}], "system": "column"}  # fmt: skip
    assert turns(chat, system="config")[0] == ("system", "first")
    assert [role for role, _ in turns({**row, "system": "  "})] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        ({"question": "q", "answer": "a"}, "query_response"),
        ({"prompt": "q", "response": "a"}, "query_response"),
        ({"input": "q", "target": "a"}, "query_response"),
        ({"prompt": "q", "completion": "a"}, "prompt_completion"),
        ({"text": "t"}, "text"),
        ({"messages": None, "instruction": "q", "output": "a"}, "alpaca"),
        ({"conversation": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, "sharegpt"),
    ],
)
def test_detection(row: dict[str, Any], shape: str) -> None:
    assert read_row(row)[0] == shape


def test_an_explicit_shape_wins_and_columns_rename() -> None:
    row = {"text": "t", "instruction": "q", "output": "a"}
    assert read_row(row, shape="text") == ("text", Document(text="t"))
    with pytest.raises(RowError, match="the row has no messages"):
        read_row(row, shape="messages")
    assert turns({"frage": "q", "antwort": "a"}, columns={"query": "frage", "response": "antwort"}) == [
        ("user", "q"),
        ("assistant", "a"),
    ]


def test_history_prompt_completion_and_unknown_keys() -> None:
    row = {"instruction": "c", "output": "d", "history": [["a", "b"]]}
    assert turns(row) == [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    assert read_row({"prompt": "p ", "completion": "c"})[1] == Continuation(prompt="p ", completion="c")
    as_messages = {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]}
    assert turns(as_messages) == [("user", "q"), ("assistant", "a")]
    with pytest.raises(RowError, match="no known shape: the row has 'chosen', 'rejected'"):
        read_row({"chosen": "a", "rejected": "b"})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"input_ids": "12"}, "not a list of token numbers"),
        ({"input_ids": [1, -2]}, "not a list of token numbers"),
        ({"input_ids": [1, True]}, "not a list of token numbers"),
        ({"input_ids": []}, "is empty"),
        ({"input_ids": [1, 2], "labels": [2]}, "'labels' is 1 entries, 'input_ids' has 2"),
        ({"input_ids": [1, 2, 3], "labels": [2, 3, -100]}, "label 2 at 0 is neither -100 nor the token there, 1"),
        ({"input_ids": [1, 0], "attention_mask": [1, 0]}, "without it"),
    ],
)
def test_tokens_that_are_none_are_told(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        read_row(row)


def test_rows_of_tokens_keep_their_labels() -> None:
    assert read_row({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}) == (
        "tokens", TokenRow(tokens=[5, 6, 7], targets=[False, True, True]),
    )  # fmt: skip
    assert read_row({"input_ids": [5, 6], "attention_mask": [1, 1]})[1] == TokenRow(tokens=[5, 6], targets=[True, True])


def test_flags_say_which_answers_are_trained() -> None:
    row = {"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": False},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 1},
    ]}  # fmt: skip
    example = read_row(row)[1]
    assert example.trained == {3}
    assert all("train" not in message for message in example.messages)
    row["messages"][1]["train"] = "maybe"
    with pytest.raises(RowError, match="the training flag 'maybe'"):
        read_row(row)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (float("nan"), "NaN"),
        ("\ud83d", "half a character"),
        ([{"type": "image", "image": "x"}], "parts of type image"),
        ({"a": 1}, "an object"),
    ],
)
def test_values_that_are_no_text(output: Any, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        read_row({"instruction": "x", "output": output})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["messages", "conversations", "role", "content", "from", "value", "instruction", "input", "output", "text",
             "tool_calls", "function", "arguments", "name", "history", "system", "prompt", "completion", "tools"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(value=json_values)
def test_any_json_is_an_example_or_a_reason(value: Any) -> None:
    try:
        example = read_row(value)[1]
    except RowError:
        return
    assert isinstance(example, (Conversation, Continuation, Document))
