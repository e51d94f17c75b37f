"""The data report: what became of every row, in numbers. A Tally is filled by prepare; its dict is what faces show.

Every row read has exactly one fate:  read = kept + truncated + split + dropped + bad
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from core.data.over_length import Fate
from core.data.pack import fill_ratio, pack_lengths
from planner.errors import ConfigError

MAX_KEPT = 10_000  # bad rows the report names one by one; the rest is a count
_MAX_LINES = 20  # of the words about them, and stretches of line numbers in one


class DataRefused(ConfigError):
    """The data cannot be trained on as it is; the report says why, row by row."""

    def __init__(self, what: str, *, why: str = "", fix: str = "", report: dict[str, Any]) -> None:
        super().__init__(what, why=why, fix=fix)
        self.report = report


@dataclass(slots=True, kw_only=True)
class SetTally:
    """One entry of ``data.train`` or ``data.eval``: what it gave."""

    spec: str
    weight: float | None = None  # its share of the rows, 0..1; None: without weights
    available: int | None = None  # records it holds, where they were counted
    left_out: int = 0  # rows not taken because of the weights
    rows: int = 0  # taken, good and bad
    samples: int = 0
    tokens: int = 0
    targets: int = 0

    def keep(self, num_tokens: int, num_targets: int) -> None:
        self.samples += 1
        self.tokens += num_tokens
        self.targets += num_targets

    def remarks(self) -> list[str]:
        remarks = []
        if self.available is not None and self.rows > self.available:
            remarks.append(f"{self.spec} takes {self.rows:,} rows from {self.available:,}: rows repeat.")
        if self.left_out:
            whole = self.rows + self.left_out
            remarks.append(f"{self.spec} gives {self.rows:,} of {whole:,} rows, its weight is {self.weight:.1%}.")
        return remarks


@dataclass(slots=True)
class Tally:
    """Counts of one set of sources (train or eval) while it is read."""

    read: int = 0
    blank_lines: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    problem_kinds: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, Counter[str]] = field(default_factory=dict)
    sets: list[SetTally] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    tokens_read: int = 0
    lengths: array[int] = field(default_factory=lambda: array("i"))  # of rows, before the over-length policy
    longest: tuple[int, str] = (0, "")

    def saw(self, file: str) -> None:
        self.read += 1
        self.files.setdefault(file, Counter())["rows"] += 1

    def saw_blank_line(self, file: str) -> None:
        self.blank_lines += 1
        self.files.setdefault(file, Counter())["blank_lines"] += 1

    def refuse(self, file: str, line: int, kind: str, reason: str) -> None:
        self.problem_kinds[kind] += 1
        self.files.setdefault(file, Counter())["bad"] += 1
        self.fates["bad"] += 1
        if len(self.problems) < MAX_KEPT:
            self.problems.append({"file": file, "line": line, "kind": kind, "reason": reason})

    def settle(self, fate: Fate, length: int, origin: str) -> None:
        self.fates[fate] += 1
        self.tokens_read += length
        self.lengths.append(length)
        if length > self.longest[0]:
            self.longest = (length, origin)

    @property
    def num_bad(self) -> int:
        return self.fates["bad"]

    def to_dict(self, *, lengths: np.ndarray, num_targets: int, max_length: int, pack_length: int) -> dict[str, Any]:
        """The report of the samples that stayed: ``lengths`` (num_samples,) tokens of each; ``pack_length`` 0: no
        packing is asked for, and the report says what it would do."""
        capacity = pack_length or max_length
        packs = len(pack_lengths(lengths, capacity, longest=max_length))
        num_tokens = int(lengths.sum())
        row_lengths = np.array(self.lengths, dtype=np.int64)
        remarks = [*self.remarks, *(remark for each in self.sets for remark in each.remarks())]
        return {
            "max_length": max_length,
            "rows": {
                "read": self.read,
                **{fate: self.fates[fate] for fate in ("kept", "truncated", "split", "dropped", "bad")},
                "blank_lines": self.blank_lines,
            },
            "samples": len(lengths),
            "tokens": {"read": self.tokens_read, "kept": num_tokens, "targets": num_targets},
            "lengths": length_statistics(row_lengths, max_length),
            "longest_row": {"tokens": self.longest[0], "origin": self.longest[1]},
            "packing": {
                "length": capacity,
                "rows_without": len(lengths),
                "rows_with": packs,
                "fill_without": fill_ratio(lengths, len(lengths), max_length),
                "fill_with": fill_ratio(lengths, packs, capacity),
            },
            "shapes": dict(self.shapes.most_common()),
            "notes": dict(self.notes.most_common()),
            "problems": {
                "count": self.num_bad,
                "by_kind": dict(self.problem_kinds.most_common()),
                "first": self.problems,
            },
            "files": [
                {"path": path, **{key: counts[key] for key in ("rows", "bad", "blank_lines")}}
                for path, counts in self.files.items()
            ],
            "sets": [asdict(each) for each in self.sets],
            "remarks": [
                *remarks,
                *remarks_on(row_lengths, self.fates, max_length, num_tokens, pack_length=pack_length),
            ],
        }


def length_statistics(lengths: np.ndarray, max_length: int) -> dict[str, Any]:
    """Tokens per row before the policy: quantiles, and a histogram whose bins double, closed above ("upto")."""
    if len(lengths) == 0:
        return {"min": 0, "median": 0, "mean": 0.0, "p95": 0, "max": 0, "histogram": []}
    edges = [min(64, max_length)]
    while edges[-1] < max(max_length, int(lengths.max())):
        following = edges[-1] * 2
        edges.append(max_length if edges[-1] < max_length < following else following)
    counts = np.bincount(np.searchsorted(edges, lengths), minlength=len(edges))
    first, last = int(np.flatnonzero(counts)[0]), int(np.flatnonzero(counts)[-1])
    return {
        "min": int(lengths.min()),
        "median": int(np.median(lengths)),
        "mean": round(float(lengths.mean()), 1),
        "p95": int(np.percentile(lengths, 95)),
        "max": int(lengths.max()),
        "histogram": [{"upto": edges[at], "rows": int(counts[at])} for at in range(first, last + 1)],
    }


def remarks_on(
    lengths: np.ndarray, fates: Counter[str], max_length: int, num_kept_tokens: int, *, pack_length: int
) -> list[str]:
    """What a person should know before spending GPU hours."""
    if len(lengths) == 0:
        return []
    longest, remarks = int(lengths.max()), []
    if longest < max_length and pack_length < max_length:
        packs = f", a pack has {pack_length:,}" if pack_length else ""
        remarks.append(f"Your longest row is {longest:,} tokens{packs}; max_length {max_length:,} is never reached.")
    elif longest < max_length:
        remarks.append(
            f"Your longest row is {longest:,} tokens: packs fill max_length {max_length:,}, no sample is that long."
        )
    over = int((lengths > max_length).sum())
    if over:
        words = {"truncated": "cut", "dropped": "dropped", "split": "split"}
        fate = next(word for key, word in words.items() if fates[key])
        share = f"{over:,} of {len(lengths):,} rows ({over / len(lengths):.0%})"
        remarks.append(f"{share} are longer than max_length {max_length:,} and were {fate}.")
    num_read_tokens = int(lengths.sum())
    lost = num_read_tokens - num_kept_tokens
    if lost > 0.05 * num_read_tokens and not fates["split"]:
        remarks.append(
            f"{lost:,} of {num_read_tokens:,} tokens ({lost / num_read_tokens:.0%}) are lost that way; "
            "over_length: split keeps them."
        )
    return remarks


def problem_lines(problems: Mapping[str, Any]) -> list[str]:
    """``train.jsonl:3,17-40: not valid JSON``: equal reasons of one file on one line, then how many are not listed."""
    lines: dict[tuple[str, str], list[int]] = {}
    for item in problems["first"]:
        lines.setdefault((item["file"], item["reason"]), []).append(item["line"])
    listed, more = [], problems["count"]
    for (file, reason), numbers in list(lines.items())[:_MAX_LINES]:
        stretches = _stretches(numbers)
        shown = stretches[:_MAX_LINES]
        more -= sum(begin <= number <= end for number in numbers for begin, end in shown)
        words = ",".join(str(begin) if begin == end else f"{begin}-{end}" for begin, end in shown)
        listed.append(f"{file}:{words}{',...' if len(stretches) > len(shown) else ''}: {reason}")
    return [*listed, f"and {more:,} more; --json names up to {MAX_KEPT:,}"] if more else listed


def _stretches(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """3 17 18 19 -> (3, 3), (17, 19)."""
    stretches: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if stretches and number == stretches[-1][1] + 1:
            stretches[-1] = (stretches[-1][0], number)
        else:
            stretches.append((number, number))
    return stretches


def refusal(report: dict[str, Any], names: Sequence[str], *, skip_is_on: bool) -> DataRefused:
    """The error for bad rows: the first ones by file, line and reason, then how many more."""
    problems, rows = report["problems"], report["rows"]
    where = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    usable = rows["read"] - rows["bad"]
    what = f"{problems['count']:,} of {rows['read']:,} rows of {where} cannot be used."
    mend = "Mend them"
    if set(problems["by_kind"]) == {"shape"}:
        mend = "Name its columns, as in data: {columns: {response: answer_text}}, or give data: {shape: ...}"
    if set(problems["by_kind"]) == {"no target"}:
        what = f"{problems['count']:,} of {rows['read']:,} rows of {where} have no trainable token."
        mend = f"Raise max_length above {report['max_length']:,} or set data: {{over_length: truncate_left}}"
    others = f", or set data: {{on_bad_row: skip}} to train on the other {usable:,}"
    skip = others if usable and not skip_is_on else ""
    return DataRefused(what, why="\n".join(problem_lines(problems)), fix=f"{mend}{skip}.", report=report)
