"""What became of one flag or key of a pasted text. Made by importer and exporter, shown by app/views/findings.py.

Every flag that was pasted stands in at least one finding; nothing is dropped without a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from planner.errors import ConfigError

Kind = Literal["impossible", "risk", "unknown", "translated", "implied", "default", "ignored"]

MEANINGS: dict[Kind, str] = {
    "impossible": "cannot be as written; what is done instead, and the way out",
    "risk": "can be, and is likely to disappoint",
    "unknown": "not understood; the nearest name is given",
    "translated": "carried over",
    "implied": "not written there, but what that tool does by itself, so it was written down",
    "default": "longfit does this by itself",
    "ignored": "changes nothing about the training here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: Kind
    flags: tuple[str, ...] = ()  # as pasted: ("--use_ulysses true", "--ulysses_num_chunks 2")
    keys: tuple[tuple[str, Any], ...] = ()  # preset keys (dotted) and values that carry it; None: the key is left out
    what: str = ""
    why: str = ""
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "flags": list(self.flags), "keys": dict(self.keys),
            "what": self.what, "why": self.why, "fix": self.fix,
        }  # fmt: skip


def refuse_impossible(findings: Iterable[Finding]) -> None:
    """For `--strict`. Raises: ConfigError with the first thing that cannot be as it was written."""
    for finding in findings:
        if finding.kind == "impossible":
            flags = " ".join(finding.flags)
            what = f"{flags}: {finding.what}" if flags else finding.what
            raise ConfigError(what, why=finding.why, fix=finding.fix)
