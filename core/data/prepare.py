"""From what a preset names to token stores on disk, with a report. The trainer reads the stores, faces the report.

Also a process of its own, because faces must not import torch or transformers:

    python -P -m core.data.prepare  < request.json  > answer.json       (fields of Request, and of Prepared)

Exit code 2 (5 for a missing package) and {"what", "why", "fix", "report"} for what the user can mend. Progress goes to
stderr, one JSON object a line: {"rows": 1200, "file": "train.jsonl", "share": 0.25}.

A prepared set lies in <cache>/data/<key>/{train/, eval/, report.json}, where the key covers the bytes of the data, the
tokenizer's files and every setting that decides a token. It appears by one rename, whole or not at all.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from core.data.holdout import hold_out
from core.data.intake import Intake, Progress
from core.data.mixture import check_weights
from core.data.shapes import known_columns, known_shapes
from core.data.sources import Source, open_source
from core.data.store import TokenStore
from core.data.tokenizer import RowTokenizer, fingerprint, tokenizer_folder
from planner.errors import ConfigError, EnvironmentProblem, LongfitError
from planner.types import DataConfig

VERSION = 2  # raise it when the same input would give other tokens or another report


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    data: DataConfig
    model: str  # folder or hub id whose tokenizer is used
    max_length: int
    cache_dir: str
    seed: int = 42
    pack_length: int = 0  # tokens of a pack, 0 without packing; words the report only: packing changes no token


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    train_store: str
    eval_store: str | None
    report: dict[str, Any]


def prepare(request: Request, progress: Progress | None = None) -> Prepared:
    """Tokenise the data of a run, or find it in the cache.

    Raises:
        ConfigError: a source, shape or tokenizer that is not there; no row at all.
        EnvironmentProblem: a format or a hub needs a package that is not installed, or the cache cannot be written.
        DataRefused: rows that cannot be used, under on_bad_row "stop" or when none is left.
    """
    check_settings(request.data, request.max_length)
    train = [open_source(spec) for spec in request.data.train]
    held_out = [open_source(spec) for spec in request.data.eval]
    folder = tokenizer_folder(request.model)
    target = Path(request.cache_dir) / "data" / cache_key(request, [*train, *held_out], fingerprint(folder))
    was_there = (target / "report.json").is_file()
    if not was_there:
        try:
            _fill(target, request, train, held_out, RowTokenizer(folder), progress)
        except OSError as error:  # what is wrong with the data's own files is a bad row, not an error
            raise EnvironmentProblem(
                f"The prepared data cannot be written below {target.parent}.",
                why=f"{error.strerror or error}; it takes about 6 bytes a token.",
                fix="Free some space there, or set LONGFIT_CACHE to another folder.",
            ) from error
    report = json.loads((target / "report.json").read_text(encoding="utf-8"))
    report["cached"] = was_there
    has_eval = (target / "eval").is_dir()
    return Prepared(
        train_store=str(target / "train"), eval_store=str(target / "eval") if has_eval else None, report=report
    )


def cache_key(request: Request, sources: Sequence[Source], tokenizer: str) -> str:
    """20 hex digits that change when a byte of the data, the tokenizer or a deciding setting changes."""
    digest = hashlib.blake2b(digest_size=10)
    settings = asdict(request) | {"tokenizer": tokenizer, "version": VERSION}
    settings = {name: value for name, value in settings.items() if name not in ("cache_dir", "model")}
    digest.update(json.dumps(settings, sort_keys=True).encode())
    for source in sources:
        for part in source.parts:
            digest.update(b"\0part\0" + part.name.encode("utf-8", "surrogateescape") + b"\0")
            part.identity(digest.update)
    return digest.hexdigest()


def _fill(
    target: Path,
    request: Request,
    train: Sequence[Source],
    held_out: Sequence[Source],
    tokenizer: RowTokenizer,
    progress: Progress | None,
) -> None:
    """Leave stores and report at ``target``, all of them or nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        report = _write(request, train, held_out, tokenizer, work, progress)
        # in ASCII: a path that the file system's encoding cannot spell has lone surrogates, which UTF-8 has not
        (work / "report.json").write_text(json.dumps(report), encoding="utf-8")
        _publish(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(
    request: Request,
    train: Sequence[Source],
    held_out: Sequence[Source],
    tokenizer: RowTokenizer,
    work: Path,
    progress: Progress | None,
) -> dict[str, Any]:
    started = time.monotonic()
    data, splits = request.data, not held_out and request.data.eval_fraction > 0
    stores: dict[str, TokenStore] = {}
    reports: dict[str, dict[str, Any]] = {}
    keys: dict[str, np.ndarray] = {}
    for name, sources in (("train", train), ("eval", held_out)):
        if sources:
            intake = Intake(data, tokenizer, max_length=request.max_length, seed=request.seed, progress=progress)
            path = work / ("whole" if splits else name)
            weights = dict(data.weights) if name == "train" else {}
            stores[name], reports[name] = intake.run(sources, path, pack_length=request.pack_length, weights=weights)
            keys[name] = np.array(intake.row_keys, dtype=np.uint64)
    if splits:
        whole = stores["train"]
        stores["train"], stores["eval"], count = hold_out(whole, keys["train"], data.eval_fraction, request.seed, work)
        reports["train"]["held_out_rows"] = count
    elif held_out:
        seen = int(np.isin(np.unique(keys["eval"]), keys["train"]).sum())
        if seen:
            reports["eval"]["remarks"].append(f"{seen:,} evaluation rows are training rows as well.")
    shutil.rmtree(work / "whole", ignore_errors=True)
    return {
        "schema": 1,
        "max_length": request.max_length,
        "seconds": round(time.monotonic() - started, 3),
        "stores": {
            name: {"samples": store.num_samples, "tokens": store.num_tokens, "targets": store.num_targets}
            for name, store in stores.items()
        },
        "train": reports["train"],
        "eval": reports.get("eval"),
    }


def _publish(work: Path, target: Path) -> None:
    """Rename; when another process was first, its copy is as good."""
    try:
        work.rename(target)
    except OSError:
        if not (target / "report.json").is_file():
            raise


def check_settings(data: DataConfig, max_length: int) -> None:
    """Raises: ConfigError for an unknown shape or column, weights that do not fit, an overlap that leaves no room."""
    _check_known("shape", data.shape, ["auto", *known_shapes()])
    for ours, _ in data.columns:
        _check_known("column", ours, list(known_columns()))
    check_weights(data.train, dict(data.weights))
    if not 1 <= data.split_overlap < max_length:
        raise ConfigError(
            f"data: split_overlap is {data.split_overlap}.",
            why=f"A piece of max_length {max_length:,} repeats that many tokens of the one before.",
            fix=f"Give 1 to {max_length - 1:,}; an eighth of max_length is usual.",
        )


def _check_known(what: str, name: str, known: list[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise ConfigError(
            f"data: {what} {name!r} is not known.",
            why=f"It can be {', '.join(known)}.",
            fix=f"Did you mean {near[0]!r}?" if near else "",
        )


def request_from_json(values: Mapping[str, Any]) -> Request:
    return Request(**{**values, "data": DataConfig(**{name: _tuples(value) for name, value in values["data"].items()})})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def main() -> int:
    # transformers imports torch wherever it finds it, and tokenizers need none: 1.2 s of start-up instead of 4.2 s.
    sys.modules["torch"] = None  # type: ignore[assignment]

    def show(rows: int, file: str, share: float | None) -> None:
        sys.stderr.write(json.dumps({"rows": rows, "file": file, "share": share}) + "\n")
        sys.stderr.flush()

    try:
        answer: dict[str, Any] = asdict(prepare(request_from_json(json.load(sys.stdin)), show))
        code = 0
    except LongfitError as error:
        answer = {"what": error.what, "why": error.why, "fix": error.fix, "report": getattr(error, "report", None)}
        code = error.exit_code
    json.dump(answer, sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main())
