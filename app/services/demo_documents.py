"""Real long documents that every machine with Python has: the language reference's topics and the longest modules.

Called by the demo. Training and held-out documents are disjoint: every seventh topic and every fourth module is held
out, and of those an excerpt each of some.
"""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

from core.run.atomic import atomic_write

NUM_MODULES = 12
EXCERPT_CHARACTERS = 3200  # of each held-out document: enough to judge by, and quick to evaluate on a CPU
NUM_HELD_OUT = 3
MIN_TOPIC_CHARACTERS = 1500  # shorter ones are cross references


def write_demo_documents(folder: Path) -> tuple[Path, Path]:
    """Write train.jsonl and heldout.jsonl (rows with ``messages``, or with ``text``); return their paths."""
    train: list[dict[str, Any]] = []
    held_out: list[dict[str, Any]] = []
    for index, row in enumerate(_topics()):
        (held_out if index % 7 == 3 else train).append(row)
    for index, row in enumerate(_modules()):
        (held_out if index % 4 == 3 else train).append(row)
    held_out = [_excerpt(row) for row in held_out[:: max(1, len(held_out) // NUM_HELD_OUT)]][:NUM_HELD_OUT]
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.jsonl", folder / "heldout.jsonl"
    for path, rows in zip(paths, (train, held_out), strict=True):
        atomic_write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return paths


def question(topic: str) -> str:
    return f"What does the Python reference say about {topic!r}?"


def _excerpt(row: dict[str, Any]) -> dict[str, Any]:
    if "text" in row:
        return {"text": row["text"][:EXCERPT_CHARACTERS]}
    user, assistant = row["messages"]
    return {"messages": [user, {**assistant, "content": assistant["content"][:EXCERPT_CHARACTERS]}]}


def _topics() -> list[dict[str, Any]]:
    from pydoc_data.topics import topics

    return [
        {"messages": [{"role": "user", "content": question(name)}, {"role": "assistant", "content": text.strip()}]}
        for name, text in sorted(topics.items())
        if len(text) >= MIN_TOPIC_CHARACTERS
    ]


def _modules() -> list[dict[str, Any]]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    longest = sorted(folder.glob("*.py"), key=lambda path: (-path.stat().st_size, path.name))[:NUM_MODULES]
    return [{"text": path.read_text("utf-8")} for path in sorted(longest)]
