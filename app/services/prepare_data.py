"""Prepare the data of a run in a process of its own: no face imports torch or transformers. Used by every face."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from app.services.locations import cache_dir as default_cache_dir
from app.services.models import local_folder
from core.data.report import DataRefused
from core.run.interpreter import child_environment, python_argv
from planner.errors import ConfigError, EnvironmentProblem, LaunchError
from planner.types import DataConfig, RunConfig

STAND_IN = "train.jsonl"  # what the presets that ship name as their data
Progress = Callable[[int, str, float | None], None]  # (rows read so far, name of the file, share of all bytes read)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    train_store: str  # folder of a core.data.store.TokenStore
    eval_store: str | None
    report: dict[str, Any]  # core/data/report.py


def prepare_data(
    config: RunConfig, *, cache_dir: Path | None = None, on_progress: Progress | None = None
) -> PreparedData:
    """The token stores of a run; from the cache in about a tenth of a second when nothing changed.

    Raises: ConfigError when a shipped preset still names its stand-in, and as ``prepare_sources``.
    """
    if config.data.train == (STAND_IN,) and not Path(STAND_IN).exists():
        raise ConfigError(
            f"{STAND_IN} stands for your own data, and there is no such file.",
            why=f"Presets that ship name no data. Looked in {Path.cwd()}.",
            fix="Name yours in data.train: --set data.train=[my.jsonl]",
        )
    packing = config.optimization("packing")
    pack_length = 0 if packing is None else packing.as_dict().get("length") or config.max_length
    return prepare_sources(
        config.data, model=config.model, max_length=config.max_length, seed=config.seed,
        pack_length=pack_length, cache_dir=cache_dir, on_progress=on_progress,
    )  # fmt: skip


def prepare_sources(
    data: DataConfig,
    *,
    model: str,
    max_length: int,
    seed: int = 42,
    pack_length: int = 0,  # 0 without packing
    cache_dir: Path | None = None,
    on_progress: Progress | None = None,
) -> PreparedData:
    """Raises:
    ConfigError: a file, model or setting that is not there.
    EnvironmentProblem: a format or a hub needs a package that is not installed.
    DataRefused: rows that cannot be used; ``report`` says which.
    LaunchError: the process died.
    """
    request = {
        "data": asdict(data),
        "model": str(local_folder(model) or model),
        "max_length": max_length,
        "cache_dir": str(cache_dir or default_cache_dir()),
        "seed": seed,
        "pack_length": pack_length,
    }
    with subprocess.Popen(
        python_argv("-m", "core.data.prepare"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=child_environment(os.environ), text=True, encoding="utf-8",
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        talk: list[str] = []
        listener = threading.Thread(target=_listen, args=(process.stderr, talk, on_progress), daemon=True)
        listener.start()
        try:
            process.stdin.write(json.dumps(request))
            process.stdin.close()
            answer = process.stdout.read()
        except BaseException:
            process.kill()
            raise
        code = process.wait()
        listener.join()
    if code == 0:
        return PreparedData(**json.loads(answer))
    try:
        error = json.loads(answer)
    except ValueError:
        raise LaunchError(
            f"Preparing the data ended with exit code {code}.",
            why="\n".join(talk[-5:]),
            fix="No input should do this: please report it as a fault of longfit.",
        ) from None
    words = {"why": error["why"], "fix": error["fix"]}
    if error["report"] is not None:
        raise DataRefused(error["what"], **words, report=error["report"])
    kind = EnvironmentProblem if code == EnvironmentProblem.exit_code else ConfigError
    raise kind(error["what"], **words)


def _listen(stream: IO[str], talk: list[str], on_progress: Progress | None) -> None:
    """Progress lines to the caller; anything else (warnings, a traceback) is kept for an error message."""
    for line in stream:
        try:
            progress = json.loads(line)
            rows, file, share = progress["rows"], progress["file"], progress["share"]
        except (ValueError, TypeError, KeyError):
            talk.append(line.rstrip())
            continue
        if on_progress is not None:
            on_progress(rows, file, share)
