"""The data report as words, rows and text. Pure; used by `longfit data`, the TUI and the page.

``report`` is what core/data/prepare.py answers: {"train": {...}, "eval": {...} | None, "stores": {...}, ...}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.views.format import format_count, format_share
from core.data.report import problem_lines

if TYPE_CHECKING:
    from app.services.draft import Draft

_FATES = (
    ("kept", "kept whole"),
    ("truncated", "cut to max_length"),
    ("split", "split into pieces"),
    ("dropped", "dropped as too long"),
    ("bad", "bad"),
)
_MAX_FILES = 8


def asked_of(draft: Draft) -> str:
    """What a report depends on; equal for two drafts that read alike."""
    keys = ("data", "model", "max_length", "packing", "seed")
    return repr([draft.values.get(key) for key in keys])


def asked_words(draft: Draft) -> str:
    """``a.jsonl for rows of 8192 tokens of Qwen/Qwen2.5-7B-Instruct``."""
    sources = draft.get("data.train") or ()
    named = ", ".join([sources] if isinstance(sources, str) else map(str, sources)) or "no data yet (set data.train)"
    return f"{named} for rows of {draft.get('max_length')} tokens of {draft.get('model')}"


def fate_rows(part: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(what happened, rows, share) of the rows read; only fates that occurred, after the first."""
    rows = part["rows"]
    read = rows["read"]
    result = [("read", format_count(read), "")]
    result += [(words, format_count(rows[key]), format_share(rows[key] / read)) for key, words in _FATES if rows[key]]
    if rows["blank_lines"]:
        result.append(("blank lines", format_count(rows["blank_lines"]), "ignored"))
    return result


def token_words(part: Mapping[str, Any]) -> str:
    """``424 tokens kept of 4,679 read, 192 to be predicted (45 %)``."""
    tokens = part["tokens"]
    share = format_share(tokens["targets"] / tokens["kept"]) if tokens["kept"] else "n/a"
    kept, read = format_count(tokens["kept"]), format_count(tokens["read"])
    return f"{kept} tokens kept of {read} read, {format_count(tokens['targets'])} to be predicted ({share})"


def length_words(part: Mapping[str, Any]) -> str:
    """``tokens per row: 40 to 4,035, median 99, mean 668.4, 95 % are at most 2,894``."""
    lengths = part["lengths"]
    low, high, median, p95 = (format_count(lengths[key]) for key in ("min", "max", "median", "p95"))
    return f"tokens per row: {low} to {high}, median {median}, mean {lengths['mean']:,}, 95 % are at most {p95}"


def packing_words(part: Mapping[str, Any]) -> str:
    packing = part["packing"]
    counts = {
        key: f"{format_count(packing[f'rows_{key}'])} ({format_share(packing[f'fill_{key}'])} full)"
        for key in ("without", "with")
    }
    length, pack_length = format_count(part["max_length"]), format_count(packing["length"])
    packs = "" if pack_length == length else f" into {pack_length}"
    return f"rows of max_length {length}: {counts['without']} without packing, {counts['with']} with packing{packs}"


def histogram_rows(part: Mapping[str, Any], *, width: int = 40, ascii_only: bool = False) -> list[tuple[str, str, str]]:
    """(tokens up to, rows, bar)."""
    bins = part["lengths"]["histogram"]
    most = max((item["rows"] for item in bins), default=1)
    block = "#" if ascii_only else "█"
    return [
        (format_count(item["upto"]), format_count(item["rows"]), block * -(-item["rows"] * width // most))
        for item in bins
    ]


def file_rows(part: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(path, rows, bad rows) of the files that matter most: those with bad rows, then the largest."""
    files = sorted(part["files"], key=lambda item: (-item["bad"], -item["rows"], item["path"]))[:_MAX_FILES]
    return [
        (item["path"], format_count(item["rows"]), f"{format_count(item['bad'])} bad" if item["bad"] else "")
        for item in files
    ]


def set_rows(part: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(set, its weight, rows given, tokens given with their share), in the order of the preset."""
    total = max(1, part["tokens"]["kept"])
    return [
        (
            item["spec"],
            "" if item["weight"] is None else f"weight {format_share(item['weight'])}",
            f"{format_count(item['rows'])} rows"
            + ("" if item["available"] is None else f" of {format_count(item['available'])}"),
            f"{format_count(item['tokens'])} tokens ({format_share(item['tokens'] / total)})",
        )
        for item in part["sets"]
    ]


def preview_lines(row: Mapping[str, Any]) -> list[str]:
    """One row as the model sees it; lines that begin with ``>`` are to be predicted."""
    tokens, targets = format_count(row["tokens"]), format_count(row["targets"])
    lines = [f"{row['origin']}  {row['shape']}, {tokens} tokens, {targets} to be predicted"]
    for text, is_target in row["segments"]:
        mark = "  > " if is_target else "    "
        pieces = text.removesuffix("\n").split("\n") if text != "\n" else ["\\n"]
        lines += [mark + printable(piece) for piece in pieces]
    return lines


def held_out_words(report: Mapping[str, Any]) -> str:
    """What is kept aside for evaluation; empty when nothing is."""
    train = report["train"]
    if train is None or "held_out_rows" not in train:
        return ""
    held_out, kept = report["stores"]["eval"], report["stores"]["train"]
    return (
        f"held out for evaluation: {format_count(train['held_out_rows'])} distinct rows, "
        f"{format_count(held_out['tokens'])} tokens; left to train on: {format_count(kept['tokens'])} tokens"
    )


def data_summary(report: Mapping[str, Any]) -> str:
    """What a person should know before training starts: a line of counts, and the remarks."""
    part = report["train"]
    rows = [(words, part["rows"][key]) for key, words in _FATES if part["rows"][key] and key != "kept"]
    others = "".join(f", {format_count(count)} {words}" for words, count in rows)
    lines = [f"data            {format_count(part['rows']['read'])} rows{others}; {token_words(part)}"]
    return "\n".join([*lines, *(f"{'':<16}{remark}" for remark in part["remarks"])])


def progress_words(rows: int, file: str, share: float | None, *, width: int = 20) -> str:
    """``[#####...............] 25 %  1,200 rows read, now train.jsonl``; without the bar when the size is unknown."""
    words = f"{format_count(rows)} rows read, now {file}"
    if share is None:
        return words
    filled = min(int(share * width), width)
    return f"[{'#' * filled}{'.' * (width - filled)}] {format_share(min(share, 1.0)):>5}  {words}"


def printable(text: str) -> str:
    """Control characters spelled out: data must not steer the terminal that shows it."""
    return text.translate({code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), *range(127, 160))})


def data_report_text(
    report: Mapping[str, Any], *, rows: int = 3, ascii_only: bool = False, with_problems: bool = True
) -> str:
    """The whole report as plain text, ends without a newline. ``with_problems`` lists the bad rows."""
    names = [name for name in ("train", "eval") if report.get(name)]
    blocks = [_part_text(name, report[name], ascii_only, with_problems) for name in names]
    train = report["train"]
    if held_out := held_out_words(report):
        blocks.append(held_out)
    shown = train["preview"][:rows] if train is not None else []
    if shown:
        blocks.append("first rows (lines marked > are to be predicted)")
        blocks += ["\n".join(preview_lines(row)) for row in shown]
    return "\n\n".join(blocks)


def _part_text(name: str, part: Mapping[str, Any], ascii_only: bool, with_problems: bool) -> str:
    shapes = ", ".join(f"{format_count(count)} {shape}" for shape, count in part["shapes"].items())
    lines = [f"{name}: {shapes or 'no row understood'}", *_columns(fate_rows(part))]
    if len(part["sets"]) > 1:
        lines += [f"{format_count(len(part['sets']))} sets", *_columns(set_rows(part), align=(str.ljust,) * 4)]
    if len(part["files"]) > max(1, len(part["sets"])):  # the table of sets names each file already
        lines += [f"{format_count(len(part['files']))} files", *_columns(file_rows(part))]
        lines += ["  ..."] if len(part["files"]) > _MAX_FILES else []
    if part["lengths"]["max"]:
        lines += [token_words(part), length_words(part)]
        lines += _columns(histogram_rows(part, ascii_only=ascii_only), align=(str.rjust, str.rjust, str.ljust))
        lines.append(packing_words(part))
    lines += [f"note: {words} ({format_count(count)})" for words, count in part["notes"].items()]
    lines += [f"note: {words}" for words in part["remarks"]]
    if with_problems and part["problems"]["count"]:
        lines += ["bad rows", *("  " + printable(line) for line in problem_lines(part["problems"]))]
    return "\n".join(lines)


def _columns(
    rows: Sequence[tuple[str, ...]], *, align: tuple[Callable[..., str], ...] = (str.ljust, str.rjust, str.rjust)
) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  " + "  ".join(put(cell, width) for put, cell, width in zip(align, row, widths)).rstrip() for row in rows]
