"""Tokenised samples on disk: written once by prepare, read as memory maps by every rank of the trainer.

A store is a folder of flat little-endian arrays, so that a set larger than memory costs no memory:

    tokens.bin   int32 (num_tokens)       all samples end to end
    targets.bin  bool  (num_tokens)       True: this token is to be predicted (never the first of a sample)
    offsets.bin  int64 (num_samples + 1)  sample i is [offsets[i], offsets[i+1])
    counts.bin   int32 (num_samples)      targets of each sample
    origins.bin  int64 (num_samples, 2)   source file index, line (or row) number: to name a sample to a person
    store.json   {"schema", "num_samples", "num_tokens", "num_targets", "sources"}; written last
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from planner.errors import ConfigError

SCHEMA = 1
_ARRAYS = ("tokens", "targets", "offsets", "counts", "origins")


class TokenStore:
    """Read side. Opening maps the files and reads nothing; all arrays are read-only."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            facts = json.loads((self.path / "store.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path} is not a token store.", why=str(error), fix="Prepare the data again: longfit data PRESET."
            ) from error
        if facts.get("schema") != SCHEMA:
            raise ConfigError(
                f"Token store {self.path} has schema {facts.get('schema')}, this version reads {SCHEMA}.",
                fix="Delete it and prepare the data again.",
            )
        self.num_samples: int = facts["num_samples"]
        self.num_tokens: int = facts["num_tokens"]
        self.num_targets: int = facts["num_targets"]
        self.sources: tuple[str, ...] = tuple(facts["sources"])
        self.tokens = self._map("tokens.bin", np.int32, self.num_tokens)
        self.targets = self._map("targets.bin", np.bool_, self.num_tokens)
        self.offsets = self._map("offsets.bin", np.int64, self.num_samples + 1)
        self.target_counts = self._map("counts.bin", np.int32, self.num_samples)
        self.origins = self._map("origins.bin", np.int64, 2 * self.num_samples).reshape(-1, 2)

    def _map(self, name: str, dtype: type, count: int) -> np.ndarray:
        file = self.path / name
        expected = count * np.dtype(dtype).itemsize
        size = file.stat().st_size if file.exists() else -1
        if size != expected:
            raise ConfigError(
                f"Token store {self.path} is damaged: {name} has {size} bytes, {expected} expected.",
                fix="Delete the folder and prepare the data again.",
            )
        return np.memmap(file, dtype=np.dtype(dtype), mode="r") if count else np.empty(0, dtype)

    def __len__(self) -> int:
        return self.num_samples

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sample, (num_samples,) int64."""
        return np.diff(self.offsets)

    def sample(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """(tokens int32, targets bool) of one sample, views of the map."""
        begin, end = int(self.offsets[index]), int(self.offsets[index + 1])
        return self.tokens[begin:end], self.targets[begin:end]

    def origin(self, index: int) -> str:
        """Where a sample came from, for people: "train.jsonl:17"."""
        source, line = self.origins[index].tolist()
        return f"{self.sources[source]}:{line}"


class StoreWriter:
    """Write side: a context manager that leaves either a whole store at ``path`` or nothing.

    Samples go to a temporary folder beside ``path``; ``finish`` renames it. When two processes prepare the same data,
    the first rename wins and the second copy is thrown away.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix=f".{self.path.name}-", dir=self.path.parent))
        self._files = {name: (self._folder / f"{name}.bin").open("wb") for name in _ARRAYS}
        self._files["offsets"].write(np.zeros(1, np.int64).tobytes())
        self.num_samples = self.num_tokens = self.num_targets = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for file in self._files.values():
            file.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __len__(self) -> int:
        return self.num_samples

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sample so far, (num_samples,) int64."""
        self._files["offsets"].flush()
        return np.diff(np.fromfile(self._folder / "offsets.bin", dtype=np.int64))

    def add(self, tokens: np.ndarray, targets: np.ndarray, *, source: int = 0, line: int = 0) -> int:
        """Append one sample: tokens (n,) integers below 2^31, targets (n,) bool, n >= 1. Returns its number of targets.

        The first token has nothing before it to be predicted from, so its target is cleared here, once for everyone.
        """
        if len(tokens) == 0 or len(tokens) != len(targets):
            raise ValueError(f"a sample needs tokens and as many targets, got {len(tokens)} and {len(targets)}")
        flags = np.array(targets, dtype=np.bool_)
        flags[0] = False
        count = int(flags.sum())
        self.num_samples += 1
        self.num_tokens += len(flags)
        self.num_targets += count
        self._files["tokens"].write(np.ascontiguousarray(tokens, dtype=np.int32).tobytes())
        self._files["targets"].write(flags.tobytes())
        self._files["offsets"].write(self.num_tokens.to_bytes(8, "little"))
        self._files["counts"].write(count.to_bytes(4, "little"))
        self._files["origins"].write(source.to_bytes(8, "little") + line.to_bytes(8, "little"))
        return count

    def finish(self, sources: Sequence[str] = ("",)) -> TokenStore:
        for file in self._files.values():
            file.close()
        facts = {
            "schema": SCHEMA,
            "num_samples": self.num_samples,
            "num_tokens": self.num_tokens,
            "num_targets": self.num_targets,
            "sources": list(sources),
        }
        (self._folder / "store.json").write_text(json.dumps(facts), encoding="utf-8")
        try:
            self._folder.rename(self.path)
        except OSError:
            if not (self.path / "store.json").exists():
                raise
        return TokenStore(self.path)
