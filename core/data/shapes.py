"""What a row means: a conversation, a prompt with its completion, or a document. Pure; called by prepare.

    messages           {"messages": [{"role", "content"}, ...]}, also "conversation(s)"; tool_calls, tools, reasoning
    sharegpt           {"conversations": [{"from": "human", "value"}, ...], "system"}
    alpaca             {"instruction", "input", "output", "history", "system"}
    query_response     a question and an answer under any of the usual names
    prompt_completion  {"prompt", "completion"} as texts: continued as they stand, without a chat template
    text               {"text"}: every token is a target
    tokens             {"input_ids", "labels"}: tokenised elsewhere; labels -100 or the token itself, not shifted

Detection looks at the keys of each row, so that one file may mix shapes; a shape given by the user wins. Nothing is
ever turned into text by str(): null is null, and what is neither text nor a number refuses the row with its reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from core.data.example import Continuation, Conversation, Document, Example, RowError, TokenRow
from core.data.row import IGNORE_INDEX

QUERY_KEYS = ("query", "question", "problem", "prompt", "instruction", "input", "user")
RESPONSE_KEYS = ("response", "answer", "output", "completion", "target", "targets", "solution", "assistant")
TEXT_KEYS = ("text", "content", "document", "body")
TURNS_KEYS = ("messages", "conversations", "conversation")
ROLES = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "model": "assistant", "bot": "assistant", "ai": "assistant",
    "chatgpt": "assistant", "function_call": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "tool_response": "tool", "ipython": "tool",
}  # fmt: skip
JOINED = "neighbours of the same role joined"
_KEPT_KEYS = ("reasoning_content", "reasoning", "thinking", "name", "tool_call_id")


def read_row(
    value: Any,
    *,
    shape: str = "auto",
    system: str | None = None,
    columns: Mapping[str, str] | None = None,
    same_role: str = "join",
) -> tuple[str, Example]:
    """(shape, example) of one row.

    Args:
        system: for conversations whose row brings no system prompt; the row's own wins, the template's comes last.
        columns: our key -> the name this data gives it, as in {"instruction": "frage", "output": "antwort"}.
        same_role: "join" two neighbouring turns of one role into one, or "refuse" the row.
    Raises:
        RowError: with the reason in words.
    """
    if not isinstance(value, dict):
        raise RowError("shape", f"the row is {_kind_of(value)}, not an object with keys")
    row = dict(value)
    for ours, theirs in (columns or {}).items():
        if theirs in row:
            row[ours] = row.pop(theirs)
    name = detect_shape(row) if shape == "auto" else shape
    if name is None:
        keys = ", ".join(map(repr, list(row)[:8])) or "no key"
        raise RowError("shape", f"no known shape: the row has {keys}")
    example = _SHAPES[name](row, system)
    if same_role == "refuse" and JOINED in example.notes:
        raise RowError("role", "two neighbouring turns have the same role")
    return name, example


def known_shapes() -> tuple[str, ...]:
    return tuple(_SHAPES)


def known_columns() -> tuple[str, ...]:
    """Our keys, to which a set's own names can be mapped."""
    names = (*TURNS_KEYS, *QUERY_KEYS, *RESPONSE_KEYS, *TEXT_KEYS, "system", "history", "tools", "input_ids", "labels")
    return tuple(dict.fromkeys(names))


def detect_shape(row: Mapping[str, Any]) -> str | None:
    """The shape by keys alone: values may be wrong, which is for the shape to say. Only a null list of messages gives
    way to another shape, because tables of mixed rows fill absent columns with null."""
    if any(row.get(key) is not None for key in TURNS_KEYS):
        return _turns_shape(row)
    if row.get("input_ids") is not None:
        return "tokens"
    if "prompt" in row and "completion" in row:
        return "prompt_completion"
    if "instruction" in row and "output" in row:
        return "alpaca"
    if any(key in row for key in QUERY_KEYS) and any(key in row for key in RESPONSE_KEYS):
        return "query_response"
    if any(key in row for key in TEXT_KEYS):
        return "text"
    return _turns_shape(row) if any(key in row for key in TURNS_KEYS) else None


def _turns_shape(row: Mapping[str, Any]) -> str:
    return "messages" if row.get("messages") is not None else "sharegpt"


def _messages(row: Mapping[str, Any], system: str | None) -> Conversation:
    turns = row[_one_key(row, TURNS_KEYS, "messages")]
    if isinstance(turns, str) and turns.lstrip().startswith("["):
        turns = _from_json(turns, "the list of messages")
    if not isinstance(turns, list):
        raise RowError("shape", f"the list of messages is {_kind_of(turns)}")
    if not turns:
        raise RowError("blank", "the list of messages is empty")
    messages = [_message(turn, number) for number, turn in enumerate(turns, 1)]
    own_system = _text_or_none(row.get("system"), "'system'")
    if own_system is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": own_system})
    tools = row.get("tools")
    if isinstance(tools, str):
        tools = _from_json(tools, "'tools'") if tools.strip() else None
    if tools is not None and not isinstance(tools, list):
        raise RowError("shape", f"'tools' is {_kind_of(tools)}, not a list")
    return _conversation(messages, system, tools or None)


def _alpaca(row: Mapping[str, Any], system: str | None) -> Conversation:
    for key in ("instruction", "output"):
        if key not in row:
            raise RowError("shape", f"shape alpaca needs {key!r}; the row has {', '.join(map(repr, row))}")
    instruction = _text_or_none(row["instruction"], "'instruction'")
    extra = _text_or_none(row.get("input"), "'input'")
    prompt = "\n".join(part for part in (instruction, extra) if part is not None)
    return _question_and_answer(row, prompt, _text_or_none(row["output"], "'output'"), system)


def _query_response(row: Mapping[str, Any], system: str | None) -> Conversation:
    query = _one_key(row, QUERY_KEYS, "question")
    response = _one_key(row, RESPONSE_KEYS, "answer")
    prompt = _text_or_none(row[query], repr(query))
    return _question_and_answer(row, prompt or "", _text_or_none(row[response], repr(response)), system)


def _question_and_answer(row: Mapping[str, Any], prompt: str, answer: str | None, system: str | None) -> Conversation:
    if not prompt.strip():
        raise RowError("blank", "the prompt is blank")
    if answer is None:
        raise RowError("blank", "the answer is blank")
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    history = row.get("history")
    if history:
        if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
            raise RowError("shape", "'history' is not a list of [question, answer] pairs")
        texts = [_text_or_none(text, "a turn of 'history'") for pair in history for text in pair]
        if None in texts:
            raise RowError("blank", "a turn of 'history' is blank")
        roles = ("user", "assistant")
        messages[:0] = [{"role": roles[at % 2], "content": text or ""} for at, text in enumerate(texts)]
    own_system = _text_or_none(row.get("system"), "'system'")
    if own_system is not None:
        messages.insert(0, {"role": "system", "content": own_system})
    return _conversation(messages, system, None)


def _prompt_completion(row: Mapping[str, Any], system: str | None) -> Example:
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        return _messages({**row, "messages": [*prompt, *completion]}, system)
    start, end = _text_or_none(prompt, "'prompt'"), _text_or_none(completion, "'completion'")
    if end is None:
        raise RowError("blank", "the completion is blank")
    return Continuation(prompt=start or "", completion=end)


def _text(row: Mapping[str, Any], system: str | None) -> Document:
    key = _one_key(row, TEXT_KEYS, "text")
    text = _text_or_none(row[key], repr(key))
    if text is None:
        raise RowError("blank", f"{key!r} is blank")
    return Document(text=text)


def _tokens(row: Mapping[str, Any], system: str | None) -> TokenRow:
    ids, labels, mask = row.get("input_ids"), row.get("labels"), row.get("attention_mask")
    if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
        raise RowError("shape", "'input_ids' is not a list of token numbers")
    if not ids:
        raise RowError("blank", "'input_ids' is empty")
    if isinstance(mask, list) and 0 in mask:
        raise RowError("value", "'attention_mask' leaves out padding: rows are given without it")
    if labels is None:
        return TokenRow(tokens=ids, targets=[True] * len(ids))
    if not isinstance(labels, list) or len(labels) != len(ids):
        found = f"{len(labels):,} entries" if isinstance(labels, list) else _kind_of(labels)
        raise RowError("shape", f"'labels' is {found}, 'input_ids' has {len(ids):,}")
    for at, (token, label) in enumerate(zip(ids, labels)):
        if label not in (IGNORE_INDEX, token):
            raise RowError("value", f"label {label!r} at {at} is neither {IGNORE_INDEX} nor the token there, {token}")
    return TokenRow(tokens=ids, targets=[label != IGNORE_INDEX for label in labels])


_SHAPES: dict[str, Callable[[Mapping[str, Any], str | None], Example]] = {
    "messages": _messages,
    "sharegpt": _messages,
    "alpaca": _alpaca,
    "query_response": _query_response,
    "prompt_completion": _prompt_completion,
    "text": _text,
    "tokens": _tokens,
}


def _message(turn: Any, number: int) -> dict[str, Any]:
    where = f"message {number}"
    if not isinstance(turn, dict):
        raise RowError("shape", f"{where} is {_kind_of(turn)}, not an object")
    word = turn.get("role", turn.get("from"))
    role = ROLES.get(word.strip().lower()) if isinstance(word, str) else None
    if role is None:
        raise RowError("role", f"{where} has the role {word!r}, which is none of {', '.join(sorted(ROLES))}")
    keys = [key for key in ("content", "value") if key in turn]
    calls = turn.get("tool_calls")
    if not keys and not calls:
        raise RowError("shape", f"{where} has no content")
    content = _text_or_none(turn[keys[0]] if keys else None, f"the content of {where}")
    message: dict[str, Any] = {"role": role, "content": content or ""}
    if isinstance(word, str) and word.strip().lower() == "function_call":
        calls, message["content"] = [_from_json(content or "", f"the call of {where}")], ""
    if calls:
        if role != "assistant":
            raise RowError("role", f"{where} has tool_calls but is not the assistant's")
        message["tool_calls"] = _tool_calls(calls, where)
    for key in _KEPT_KEYS:
        if turn.get(key) is not None and (text := _text_or_none(turn[key], f"{key!r} of {where}")) is not None:
            message[key] = text
    flag = next((turn[key] for key in ("train", "loss", "weight") if turn.get(key) is not None), None)
    if flag is not None:
        if flag not in (0, 1):
            raise RowError("shape", f"{where} has the training flag {flag!r}; it can be true or false")
        message["train"] = bool(flag)
    return message


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """The calls with arguments as objects: a text and an object then train the same tokens."""
    if not isinstance(calls, list):
        raise RowError("shape", f"'tool_calls' of {where} is {_kind_of(calls)}, not a list")
    result = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RowError("shape", f"a tool call of {where} has no function name")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            arguments = _from_json(arguments, f"the arguments of a call in {where}") if arguments.strip() else {}
        if arguments is not None and not isinstance(arguments, dict):
            raise RowError("shape", f"the arguments of a call in {where} are {_kind_of(arguments)}, not an object")
        kept = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
        cleaned = {"name": function["name"], "arguments": arguments or {}}
        result.append({**kept, "type": "function", "function": cleaned})
    return result


def _conversation(messages: list[dict[str, Any]], system: str | None, tools: list[Any] | None) -> Conversation:
    """Put the turns in order: system first, equal neighbours joined, nothing after the last answer."""
    notes: dict[str, None] = {}
    messages = [m for m in messages if m["role"] != "system" or m["content"].strip()]
    if system is not None and (not messages or messages[0]["role"] != "system"):
        messages = [{"role": "system", "content": system}, *messages]
    joined: list[dict[str, Any]] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is not None and _can_join(last, message):
            joined[-1] = {**last, "content": f"{last['content']}\n\n{message['content']}"}
            notes[JOINED] = None
        else:
            joined.append(message)
    while joined and joined[-1]["role"] != "assistant":
        joined.pop()
        notes["unanswered end cut"] = None
    if not joined:
        raise RowError("role", "no message is the assistant's")
    for number, message in enumerate(joined, 1):
        says_nothing = not message["content"].strip() and not message.get("tool_calls")
        if says_nothing and message["role"] in ("user", "assistant"):
            raise RowError("blank", f"message {number} ({message['role']}) is blank")
    flags = {at: message.pop("train") for at, message in enumerate(joined) if "train" in message}
    trained = None
    if flags:
        assistants = [at for at, message in enumerate(joined) if message["role"] == "assistant"]
        trained = frozenset(at for at in assistants if flags.get(at, True))
    return Conversation(messages=joined, tools=tools, trained=trained, notes=tuple(notes))


def _can_join(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Same speaker, plain text on both sides, the same training flag."""
    plain = {"role", "content", "train"}
    return (
        first["role"] == second["role"] != "tool"
        and first.get("train") == second.get("train")
        and not (first.keys() | second.keys()) - plain
    )


def _text_or_none(value: Any, where: str) -> str | None:
    """The text; None for null and for white space alone; a number as JSON writes it.

    Raises: RowError for anything else, and for text that is no Unicode (a lone surrogate).
    """
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        raise RowError("value", f"{where} is {'NaN' if math.isnan(value) else 'infinite'}, not text")
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        others = sorted({str(part["type"]) for part in value if part["type"] != "text"})
        if others:
            raise RowError("value", f"{where} has parts of type {', '.join(others)}; only text can be trained")
        texts = [_text_or_none(part.get("text"), f"a text part of {where}") for part in value]
        return "".join(text for text in texts if text is not None) or None
    if not isinstance(value, str):
        raise RowError("value", f"{where} is {_kind_of(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RowError("value", f"{where} has half a character (a lone surrogate) at position {error.start}") from None
    return value if value.strip() else None


def _one_key(row: Mapping[str, Any], keys: tuple[str, ...], what: str) -> str:
    """The first of ``keys`` that the row fills, or else has."""
    present = [key for key in keys if key in row]
    if not present:
        raise RowError("shape", f"the row has no {what}: none of {', '.join(keys)} is among its keys")
    return next((key for key in present if row[key] is not None), present[0])


def _from_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RowError("value", f"{where} is not valid JSON") from None


def _kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
