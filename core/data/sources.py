"""What a preset names under ``data.train`` becomes files, and files become numbered records. Called by prepare.

    train.jsonl            one file                docs/            every readable file below, sorted
    data/*.jsonl.gz        a glob                  chat.json#500    500 records, drawn by the seed
    chat.json#200%         every record twice      hf::org/name     a set of a hub, see core/data/hub.py

An existing path wins over every other reading of the same text. Which records are drawn: core/data/mixture.py.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from core.data.hub import hub_set
from core.data.readers import read_file, reader_for
from core.data.record import Record
from planner.errors import ConfigError

Watch = Callable[[int], None]  # told how many bytes have been read
_SAMPLE = re.compile(r"^(?P<name>.+)#(?P<amount>\d+)(?P<percent>%?)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that yields records and can be read again: one file, or one set of a hub."""

    name: str  # for people: the path as given, or below the folder given
    read: Callable[[Watch | None], Iterator[Record]]
    identity: Callable[[Callable[[bytes], None]], None]  # feeds what decides the content to a hash
    size_bytes: int = 0  # 0: not known beforehand


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One entry of ``data.train`` or ``data.eval``."""

    spec: str
    parts: tuple[Part, ...]
    amount: int | None = None  # "#500"
    percent: int | None = None  # "#50%"
    passed_over: Counter[str] = field(default_factory=Counter)  # suffixes of files in a folder that were not read

    @property
    def is_sampled(self) -> bool:
        return self.amount is not None or self.percent is not None

    def num_wanted(self, available: int) -> int:
        """Rows this set gives when it holds ``available`` records."""
        if self.amount is not None:
            return self.amount if available else 0
        return available * (100 if self.percent is None else self.percent) // 100

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def records(self, copies: np.ndarray | None = None, watch: Watch | None = None) -> Iterator[tuple[int, Record]]:
        """(index of the part, record) in file order; ``watch`` hears of all parts.

        Args:
            copies: (num_records,) how often each is taken, from core/data/mixture.py; None: once.
        """
        number, before = -1, 0

        def watch_part(read_bytes: int) -> None:
            if watch is not None:
                watch(before + read_bytes)

        for index, part in enumerate(self.parts):
            before = sum(earlier.size_bytes for earlier in self.parts[:index])
            for record in part.read(watch_part):
                if copies is None:
                    yield index, record
                elif record.kind != "blank":
                    number += 1
                    yield from ((index, record) for _ in range(copies[number]))


def open_source(spec: str) -> Source:
    """Find what a spec names, without reading it.

    Raises:
        ConfigError: nothing there (with the nearest name), a folder without a readable file, a hub without its package.
    """
    sampled = None if Path(os.path.expanduser(spec)).exists() else _SAMPLE.match(spec)
    name = sampled["name"] if sampled else spec
    amount = int(sampled["amount"]) if sampled else None
    if amount == 0:
        raise ConfigError(f"{spec!r} asks for no rows.", fix=f"Leave out #0, or leave out {name!r}.")
    parts, passed_over = _find(name)
    return Source(
        spec=spec,
        parts=tuple(parts),
        amount=amount if sampled and not sampled["percent"] else None,
        percent=amount if sampled and sampled["percent"] else None,
        passed_over=passed_over,
    )


def _find(name: str) -> tuple[list[Part], Counter[str]]:
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and not _is_hidden(file.relative_to(path)))
        known = [file for file in files if reader_for(file) is not None]
        others = Counter(file.suffix or "(no suffix)" for file in files if reader_for(file) is None)
        if not known:
            holds = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common(5)) or "no file at all"
            raise ConfigError(f"The folder {name} holds nothing that can be read.", why=f"It holds {holds}.")
        return [_file_part(file, str(Path(name) / file.relative_to(path))) for file in known], others
    if path.exists():
        if not path.is_file():
            raise ConfigError(
                f"{name} is no file but a pipe, a socket or a device.",
                why="Data is read more than once: to recognise it again, to count it and to tokenise it.",
                fix="Save it to a file first.",
            )
        return [_file_part(path, name)], Counter()
    remote = hub_set(name)
    if remote is not None:  # before globs: hf::org/name[split] is none
        return [Part(name=name, read=lambda _: remote.records(), identity=remote.identity)], Counter()
    if any(char in name for char in "*?["):
        found = sorted(file for file in map(Path, glob.glob(str(path), recursive=True)) if file.is_file())
        if not found:
            raise ConfigError(f"No file matches {name}.", why=f"Looked from {Path.cwd()}.")
        return [_file_part(file, str(file)) for file in found], Counter()
    near = difflib.get_close_matches(path.name, _names_in(path.parent), n=1, cutoff=0.5)
    raise ConfigError(
        f"There is no {name}.",
        why=f"Looked in {path.parent.absolute()}.",
        fix=f"Did you mean {path.parent / near[0]}?"
        if near
        else "A set of a hub is written hf::org/name or ms::org/name.",
    )


def _file_part(path: Path, name: str) -> Part:
    def identity(update: Callable[[bytes], None]) -> None:
        with suppress(OSError), path.open("rb") as stream:  # reading it will say what is wrong, as a bad row
            while block := stream.read(1 << 20):
                update(block)

    return Part(
        name=name, read=lambda watch: read_file(path, watch), identity=identity, size_bytes=path.stat().st_size
    )  # fmt: skip


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
