"""Values as people type them: "True", "8,192", "bf16", [q_proj, v_proj]. Called by the rules of every dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_TRUE = frozenset({"true", "1", "yes", "y", "on", "t"})
_FALSE = frozenset({"false", "0", "no", "n", "off", "f", "none", "null", ""})
_DTYPES = {
    "bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "fp16": "float16", "half": "float16",
    "float32": "float32", "fp32": "float32", "float": "float32", "full": "float32",
}  # fmt: skip


class NotUnderstood(ValueError):
    """The value is not of the kind that its flag takes; the message is a sentence."""


def one(value: Any) -> Any:
    """The value itself, of a flag that takes one; words behind it are dirt that came with the paste."""
    return value[0] if isinstance(value, (tuple, list)) and value else value


def text(value: Any) -> str:
    value = one(value)
    if value is True or value is None or isinstance(value, Mapping):
        raise NotUnderstood("It needs a text as its value.")
    return str(value)


def truth(value: Any) -> bool:
    """A bare flag is true."""
    value = one(value)
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if value is None or word in _FALSE:
        return False
    raise NotUnderstood(f"{value!r} is neither true nor false.")


def number(value: Any) -> float:
    value = one(value)
    if isinstance(value, bool) or value is None:
        raise NotUnderstood("It needs a number as its value.")
    if isinstance(value, (int, float)):
        found = float(value)
    else:
        try:
            found = float(re.sub(r"(?<=\d)[,_](?=\d{3}\b)", "", str(value).strip()))
        except ValueError:
            raise NotUnderstood(f"{value!r} is not a number.{_meant_thousands(str(value))}") from None
    if found != found or found in (float("inf"), float("-inf")):
        raise NotUnderstood(f"{value!r} is not a finite number.")
    return found


def whole(value: Any) -> int:
    found = number(value)
    if not found.is_integer():
        raise NotUnderstood(f"{one(value)!r} is not a whole number.")
    return int(found)


def texts(value: Any) -> tuple[str, ...]:
    """``a b``, ``a,b``, ``["a", "b"]`` as a Python or JSON list, or a list of a document."""
    if isinstance(value, str):
        stripped = value.strip()
        if stripped.startswith("["):
            try:
                value = json.loads(stripped.replace("'", '"'))
            except ValueError:
                value = stripped.strip("[]").split(",")
        else:
            value = stripped.split(",")
    if value is None or value is True:
        raise NotUnderstood("It needs at least one text as its value.")
    items = value if isinstance(value, (list, tuple)) else [value]
    flat = [part for item in items for part in (str(item).split(",") if isinstance(item, str) else [str(item)])]
    return tuple(part.strip(" '\"") for part in flat if part.strip(" '\""))


def numbers(value: Any) -> tuple[float, ...]:
    return tuple(map(number, texts(value)))


def mapping(value: Any) -> Mapping[str, Any]:
    value = one(value)
    if isinstance(value, str) and value.strip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            raise NotUnderstood(f"{value!r} is not a JSON object.") from None
    if not isinstance(value, Mapping):
        raise NotUnderstood(f"{value!r} is not a mapping.")
    return value


def dtype(value: Any) -> str:
    word = text(value).strip().lower().removeprefix("torch.")
    if word not in _DTYPES:
        raise NotUnderstood(f"{word!r} is not a dtype that can be trained in: bfloat16, float16 or float32.")
    return _DTYPES[word]


def is_off(value: Any) -> bool:
    """What a flag holds when the feature is switched off: false, none, 0, an empty list."""
    value = one(value)
    if value is None or value is False or value in ((), [], {}):
        return True
    return not isinstance(value, bool) and str(value).strip().lower() in {*_FALSE, "0.0"}


def _meant_thousands(word: str) -> str:
    match = re.fullmatch(r"(\d+)\s*[kK]", word.strip())
    return f" Did you mean {int(match[1]) * 1024}?" if match else ""
