"""Decides what a pasted text is (command, configuration or Python) and has it read. Called by imported.py."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from app.services.importing.command import read_command
from app.services.importing.document import read_document
from app.services.importing.pasted import Pasted
from app.services.importing.python_call import looks_like_python, read_python
from app.services.yaml_text import load_yaml
from planner.errors import ConfigError

_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[\w+-]*[ \t]*$\n?", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*longfit:[ \t]*([\w.]+)[ \t]*=(.*)$\n?", re.MULTILINE)
_KEY_LINE = re.compile(r"^[ \t]*[\"']?[\w-]+[\"']?[ \t]*(?::(?:[ \t]|$)|：)", re.MULTILINE)
_FLAG_WORD = re.compile(r"(?:^|\s)[-‐‑‒–—―−－]{1,2}[A-Za-z]\w")


def read_paste(text: str) -> Pasted:
    """Any text; never raises. Lines such as "# longfit: fake_parallel=2" are kept apart as ``directives``."""
    directives = dict(_directive(match[1], match[2]) for match in _DIRECTIVE.finditer(text))
    body = _FENCE.sub("", _DIRECTIVE.sub("", text.lstrip("\ufeff")))
    return replace(_read(body), directives=directives)


def _read(text: str) -> Pasted:
    if not text.strip():
        return Pasted(source="nothing", problem="The text is empty.")
    if looks_like_python(text):
        pasted = read_python(text)
        if pasted.source != "nothing":
            return pasted
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    key_lines = sum(bool(_KEY_LINE.match(line)) for line in lines)
    is_document = bool(lines) and bool(lines[0].lstrip().startswith("{") or _KEY_LINE.match(lines[0]))
    if is_document and 2 * key_lines >= sum(bool(_FLAG_WORD.search(line)) for line in lines):
        document = read_document(text)
        if document.source != "nothing":
            return document
        command = read_command(text)
        return command if command.settings else document
    return read_command(text)


def _directive(key: str, value: str) -> tuple[str, Any]:
    try:
        return key, load_yaml(value, where="# longfit:")
    except (ConfigError, ValueError, TypeError, AttributeError):
        return key, value.strip()
