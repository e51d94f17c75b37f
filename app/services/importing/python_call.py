"""Reads the arguments out of pasted training code: TrainingArguments(...), SFTConfig(...), LoraConfig(...). Called by
paste.py. The code is parsed, never run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from app.services.importing.pasted import Pasted, Setting, flag_name

# call -> how its arguments are named among Hugging Face's command line flags, where that differs
_LORA = {
    "r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save",
    "bias": "lora_bias", "init_lora_weights": "init_weights",
}  # fmt: skip
_UNSLOTH = {"use_gradient_checkpointing": "gradient_checkpointing", "random_state": "adapter_seed"}
_CALLS: Mapping[str, Mapping[str, str]] = {
    "TrainingArguments": {}, "Seq2SeqTrainingArguments": {}, "SFTConfig": {}, "SFTTrainer": {"model": "model"},
    "LoraConfig": _LORA, "get_peft_model": {**_LORA, **_UNSLOTH}, "BitsAndBytesConfig": {}, "from_pretrained": {},
    "load_dataset": {},
}  # fmt: skip
_FIRST_ARGUMENT = {"from_pretrained": "model_name_or_path", "load_dataset": "dataset_name", "SFTTrainer": "model"}
_CALL = re.compile(r"\b(?:" + "|".join(sorted(_CALLS, key=len, reverse=True)) + r")\s*\(")


def looks_like_python(text: str) -> bool:
    return bool(_CALL.search(text))


def read_python(text: str) -> Pasted:
    """One setting a keyword argument of the known calls; LoRA is on where adapters are configured or put in."""
    settings: list[Setting] = []
    seen: set[str] = set()
    for call in _calls(text):
        name = _name_of(call.func)
        seen.add(name)
        names = _CALLS.get(name, {})
        if call.args and name in _FIRST_ARGUMENT and _is_plain(call.args[0]):
            settings.append(_setting(_FIRST_ARGUMENT[name], call.args[0], f"{name}({ast.unparse(call.args[0])})"))
        for keyword in call.keywords:
            if keyword.arg is not None and _is_told_here(name, keyword):
                written = f"{keyword.arg}={ast.unparse(keyword.value)}"
                settings.append(_setting(names.get(keyword.arg, keyword.arg), keyword.value, written))
    for call_name in ("LoraConfig", "get_peft_model"):
        if call_name in seen:
            settings.append(Setting(name="use_peft", value=True, written=f"{call_name}(...)"))
            break
    if not settings:
        return Pasted(source="nothing", problem="It holds no arguments of a training call.")
    return Pasted(source="python", program="trl", verb="sft", settings=tuple(settings))


def _calls(text: str) -> Iterator[ast.Call]:
    """Calls in the order of the text. What does not parse as a whole is parsed call by call."""
    try:
        nodes: list[ast.AST] = [ast.parse(text)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        nodes = []
        for match in _CALL.finditer(text):
            end = _closing_parenthesis(text, match.end())
            try:
                nodes.append(ast.parse(text[match.start() : end], mode="eval"))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
    found = [node for root in nodes for node in ast.walk(root) if isinstance(node, ast.Call)]
    known = [call for call in found if _name_of(call.func) in _CALLS]
    yield from sorted(known, key=lambda call: (call.lineno, call.col_offset)) if len(nodes) == 1 else known


def _closing_parenthesis(text: str, start: int) -> int:
    depth = 1
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    return len(text)


def _name_of(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _is_plain(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return isinstance(node, ast.Attribute)
    return True


def _is_told_here(call: str, keyword: ast.keyword) -> bool:
    """Objects that are handed on (model=model, args=config) were read where they are made."""
    if call in ("SFTTrainer", "get_peft_model"):
        return _is_plain(keyword.value) and not isinstance(keyword.value, ast.Attribute)
    return not (call == "from_pretrained" and keyword.arg == "quantization_config")


def _setting(name: str, node: ast.expr, written: str) -> Setting:
    """A computed value stays text with a ``$`` in front, which no rule reads: it is told as not understood."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value = node.attr if isinstance(node, ast.Attribute) else f"${{{ast.unparse(node)}}}"  # torch.bfloat16
    if isinstance(value, (set, frozenset)):
        value = sorted(map(str, value))
    return Setting(name=flag_name(name), value=value, written=written)
