"""What a pasted text says, read but not yet understood: made by the readers, translated by the importer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Source = Literal["command", "document", "python", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One flag with its value, one key of a document, one argument of a Python call, or an environment variable."""

    name: str  # lower case, with underscores: "max_length"
    value: Any  # True for a bare flag, a str, a tuple of str; from a document whatever stood there
    written: str  # as it stands in the text: "--max-length 8192"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pasted:
    source: Source
    program: str = ""  # swift | llamafactory | axolotl | trl | longfit | script; "" when none is named
    verb: str = ""  # sft, pt, infer, train, ...
    settings: tuple[Setting, ...] = ()
    launcher: tuple[Setting, ...] = ()  # of torchrun, accelerate, deepspeed
    environment: tuple[Setting, ...] = ()  # variables in front, or exported
    files: tuple[str, ...] = ()  # configuration files that the command names
    stray: tuple[str, ...] = ()  # words that belong to no flag
    others: tuple[str, ...] = ()  # further commands in the text: "swift infer"
    directives: Mapping[str, Any] = field(default_factory=dict)  # of lines such as "# longfit: fake_parallel=2"
    problem: str = ""  # why nothing could be read


def flag_name(written: str) -> str:
    """``--Max-Length`` -> ``max_length``."""
    return written.lstrip("-").replace("-", "_").lower()
