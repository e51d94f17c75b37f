"""Sources in, one token store and one tally out: the loop over rows. Called by prepare, once for train and for eval."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from core.data.example import Example, RowError, texts_of
from core.data.mixture import Draw, draw_rows
from core.data.over_length import fit_length
from core.data.report import SetTally, Tally, refusal
from core.data.shapes import read_row
from core.data.sources import Source
from core.data.store import StoreWriter, TokenStore
from core.data.tokenizer import LaidOut, RowTokenizer, Tokenized
from planner.errors import ConfigError
from planner.types import DataConfig

PREVIEW_ROWS = 8
_PREVIEW_CHARACTERS = 2000  # of one segment; the middle of longer ones is left out
_BATCH_ROWS, _BATCH_CHARACTERS = 512, 2_000_000  # one call of the tokenizer: enough work for all cores

Progress = Callable[[int, str, float | None], None]  # (rows read so far, name of the file, share of all bytes read)
Waiting = tuple[int, int, str, Example, int]  # part, line, shape, example, characters


class Intake:
    """Reads, tokenises, fits and stores the rows of some sources. Use one object for one store.

    After ``run``: ``tally`` for the report, ``preview`` of the first rows, ``row_keys`` (num_samples,) uint64 that are
    equal exactly for samples cut from rows of equal content (the evaluation split keeps those together).
    """

    def __init__(
        self, data: DataConfig, tokenizer: RowTokenizer, *, max_length: int, seed: int, progress: Progress | None = None
    ) -> None:
        self.data = data
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.seed = seed
        self.progress = progress
        self.tally = Tally()
        self.preview: list[dict[str, Any]] = []
        self.row_keys = array("Q")
        self._read_bytes = 0
        self._special = re.compile("|".join(map(re.escape, tokenizer.special_tokens)) or r"(?!)")

    def run(
        self, sources: Sequence[Source], path: Path, *, pack_length: int = 0, weights: Mapping[str, float] | None = None
    ) -> tuple[TokenStore, dict[str, Any]]:
        """The store at ``path`` and its report (``pack_length`` words it only); ``weights`` as in core/data/mixture.py.

        Raises:
            DataRefused: bad rows under on_bad_row "stop", or no usable row.
            ConfigError: no row at all.
        """
        draws = draw_rows(sources, weights or {}, self.seed, counting=self._counting)
        self.tally.sets = [_set_tally(source.spec, draw, weights or {}) for source, draw in zip(sources, draws)]
        self._names = [part.name for source in sources for part in source.parts]
        self._sets = [tally for source, tally in zip(sources, self.tally.sets) for _ in source.parts]  # of each part
        self._total_bytes = sum(source.size_bytes for source in sources)
        with StoreWriter(path) as self._writer, ThreadPoolExecutor(max_workers=1) as other_thread:
            waiting: tuple[list[Waiting], list[LaidOut], Future[dict[int, Any]]] | None = None
            for batch in _batches(self._examples(sources, draws)):
                layouts = self.tokenizer.lay_out([example for *_, example, _ in batch], self.data.train_on)
                encodings = other_thread.submit(self.tokenizer.encode, layouts)  # while this thread reads and renders
                if waiting is not None:
                    self._store(*waiting)
                waiting = (batch, layouts, encodings)
            if waiting is not None:
                self._store(*waiting)
            report = self.tally.to_dict(
                lengths=self._writer.lengths,
                num_targets=self._writer.num_targets,
                max_length=self.max_length,
                pack_length=pack_length,
            )
            report["preview"] = self.preview
            self._judge(report)
            return self._writer.finish(self._names), report

    def _counting(self, name: str, share: float | None) -> None:
        if self.progress is not None:
            self.progress(0, name, share)

    def _judge(self, report: dict[str, Any]) -> None:
        names, skips = ", ".join(self._names[:3]), self.data.on_bad_row == "skip"
        if self.tally.read == 0:
            raise ConfigError(f"The data set is empty: {names} holds no row.", fix="Give a file with at least one row.")
        if self.tally.num_bad and not (skips and len(self._writer)):
            raise refusal(report, self._names, skip_is_on=skips)
        if len(self._writer) == 0:
            raise ConfigError(
                f"No row of {names} is left: all {self.tally.read:,} are longer than max_length {self.max_length:,}.",
                why=f"data: over_length is drop; the shortest row has {report['lengths']['min']:,} tokens.",
                fix="Raise max_length, or set over_length to truncate_right or split.",
            )

    def _store(self, batch: list[Waiting], layouts: list[LaidOut], encodings: Future[dict[int, Any]]) -> None:
        split_at = self.data.split_at if self.data.over_length == "split" else ""
        results = self.tokenizer.finish(layouts, encodings.result(), split_at=split_at)
        for (part, line, shape, *_), result in zip(batch, results):
            self._take(part, line, shape, result)
        if self.progress is not None:
            share = self._read_bytes / self._total_bytes if self._total_bytes else None
            self.progress(self.tally.read, self._names[batch[-1][0]], share)

    def _examples(self, sources: Sequence[Source], draws: Sequence[Draw]) -> Iterator[Waiting]:
        first, columns, before = 0, dict(self.data.columns), 0
        never_seen = {theirs: ours for ours, theirs in self.data.columns}

        def watch(read_bytes: int) -> None:
            self._read_bytes = before + read_bytes

        for source, draw in zip(sources, draws):
            for suffix, count in source.passed_over.most_common():
                self.tally.remarks.append(f"{source.spec}: {count:,} files of kind {suffix} are not read.")
            for at, record in source.records(draw.copies, watch):
                part, line = first + at, record.line
                name = self._names[part]
                if record.kind == "blank":
                    self.tally.saw_blank_line(name)
                    continue
                self.tally.saw(name)
                self._sets[part].rows += 1
                if record.kind == "bad":
                    self.tally.refuse(name, line, "unreadable", record.problem)
                    continue
                if never_seen and isinstance(record.value, dict):
                    for theirs in never_seen.keys() & record.value.keys():
                        del never_seen[theirs]
                try:
                    shape, example = read_row(
                        record.value,
                        shape=self.data.shape,
                        system=self.data.system,
                        columns=columns,
                        same_role=self.data.same_role,
                    )
                except RowError as error:
                    self.tally.refuse(name, line, error.kind, str(error))
                    continue
                self.tally.shapes[shape] += 1
                yield part, line, shape, example, self._look_at(example)
            first += len(source.parts)
            before += source.size_bytes
        for theirs, ours in never_seen.items():
            self.tally.remarks.append(f"columns: no row has {theirs!r}, from which {ours!r} was to be read.")

    def _look_at(self, example: Example) -> int:
        """Count what is allowed and yet worth knowing; the number of characters."""
        texts = texts_of(example)
        if any(self._special.search(text) for text in texts):
            self.tally.notes["the text of a special token stands in the content"] += 1
        if any("\0" in text for text in texts):
            self.tally.notes["NUL characters in the content, kept"] += 1
        return sum(map(len, texts))

    def _take(self, part: int, line: int, shape: str, result: Tokenized | RowError) -> None:
        name = self._names[part]
        if isinstance(result, RowError):
            self.tally.refuse(name, line, result.kind, str(result))
            return
        tokens, targets = result.tokens, result.targets
        if len(tokens) == 0:
            self.tally.refuse(name, line, "no target", "the tokenizer leaves no token of it")
            return
        fate, pieces = fit_length(
            tokens,
            targets,
            max_length=self.max_length,
            policy=self.data.over_length,
            bos_id=self.tokenizer.bos_id,
            borders=result.borders,
            overlap=self.data.split_overlap,
        )
        useful = [piece for piece in pieces if piece[1][1:].any()]
        if fate != "dropped" and not useful:
            self.tally.refuse(name, line, "no target", _why_no_target(targets, self.max_length, fate))
            return
        if len(useful) < len(pieces):
            self.tally.notes["pieces without a target left out"] += len(pieces) - len(useful)
        self.tally.notes.update(result.notes)
        self.tally.settle(fate, len(tokens), f"{name}:{line}")
        key = int.from_bytes(hashlib.blake2b(tokens.tobytes(), digest_size=8).digest(), "little")
        for piece_tokens, piece_targets in useful:
            num_targets = self._writer.add(piece_tokens, piece_targets, source=part, line=line)
            self._sets[part].keep(len(piece_tokens), num_targets)
            self.row_keys.append(key)
        if useful and len(self.preview) < PREVIEW_ROWS:
            self.preview.append(self._show(f"{name}:{line}", shape, *useful[0]))

    def _show(self, origin: str, shape: str, tokens: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
        """A row as text in segments, each a target or not."""
        marks = np.concatenate([[False], targets[1:]])
        edges = [0, *(np.flatnonzero(marks[1:] != marks[:-1]) + 1).tolist(), len(tokens)]
        segments = []
        for begin, end in pairwise(edges):
            text = self.tokenizer.decode(tokens[begin:end].tolist())
            if len(text) > _PREVIEW_CHARACTERS:
                half = _PREVIEW_CHARACTERS // 2
                text = f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"
            segments.append([text, bool(marks[begin])])
        return {
            "origin": origin, "shape": shape, "tokens": len(tokens), "targets": int(marks.sum()), "segments": segments,
        }  # fmt: skip


def _batches(examples: Iterator[Waiting]) -> Iterator[list[Waiting]]:
    batch: list[Waiting] = []
    characters = 0
    for waiting in examples:
        batch.append(waiting)
        characters += waiting[4]
        if len(batch) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _set_tally(spec: str, draw: Draw, weights: Mapping[str, float]) -> SetTally:
    weight = weights[spec] / sum(weights.values()) if weights else None
    return SetTally(spec=spec, weight=weight, available=draw.available, left_out=draw.left_out)


def _why_no_target(targets: np.ndarray, max_length: int, fate: str) -> str:
    where = np.flatnonzero(targets[1:]) + 1
    if len(where) == 0:
        alone = len(targets) == 1
        return "a single token, with nothing before it to predict it from" if alone else "no token to train on"
    kept = f"the {len(targets):,} tokens cut to max_length {max_length:,}"
    return f"no trainable token is left of {kept}: the answer is tokens {where[0] + 1:,} to {where[-1] + 1:,}"
