"""Sets of the Hugging Face and ModelScope hubs, streamed row by row. Called by core/data/sources.py.

    hf::org/name            split "train" of the default subset, newest revision
    ms::org/name            the same from ModelScope; AI-ModelScope/name needs no prefix
    hf::org/name:subset@revision[split]

The clients are optional packages; without them only the message of what to install is ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from core.data.record import Record
from core.data.table_reader import without_nulls
from planner.errors import ConfigError, EnvironmentProblem

_SPEC = re.compile(
    r"^(?:(?P<hub>hf|ms)::)?(?P<id>[\w.-]+/[\w.-]+)(?::(?P<subset>[\w.-]+))?(?:@(?P<revision>[\w.-]+))?"
    r"(?:\[(?P<split>[\w.-]+)\])?$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSet:
    hub: Literal["hf", "ms"]
    id: str
    subset: str | None = None
    revision: str | None = None
    split: str = "train"

    def records(self) -> Iterator[Record]:
        """Raises: EnvironmentProblem without the client, ConfigError when the hub does not give the set."""
        try:
            for number, row in enumerate(self._rows(), 1):
                yield Record(line=number, value={key: without_nulls(value) for key, value in row.items()})
        except (ImportError, EnvironmentProblem):
            raise
        except Exception as error:  # network, rights, a wrong name, a loading script: each client raises its own
            raise ConfigError(
                f"The set {self.id} could not be read from the hub.",
                why=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
                fix="Check its name, subset and split, and that this machine may reach the hub.",
            ) from error

    def identity(self, update: Callable[[bytes], None]) -> None:
        """What decides the content: the commit when the hub tells it, else every row."""
        commit = self._commit()
        if commit is not None:
            update(commit.encode())
            return
        for record in self.records():
            update(json.dumps(record.value, sort_keys=True, default=str).encode("utf-8", "surrogatepass"))

    def _rows(self) -> Iterable[Mapping[str, Any]]:
        if self.hub == "hf":
            try:
                from datasets import load_dataset
            except ImportError:
                raise self._needs("datasets") from None
            return load_dataset(self.id, self.subset, split=self.split, revision=self.revision, streaming=True)
        try:
            from modelscope.msdatasets import MsDataset
        except ImportError:
            raise self._needs("modelscope") from None
        return MsDataset.load(
            self.id, subset_name=self.subset, split=self.split, version=self.revision, use_streaming=True
        )

    def _commit(self) -> str | None:
        if self.hub != "hf":
            return None
        from huggingface_hub import HfApi

        try:
            return HfApi().dataset_info(self.id, revision=self.revision).sha
        except Exception:  # offline, or a mirror without this call: the rows themselves tell
            return None

    def _needs(self, package: str) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"The set {self.id} cannot be loaded.", why=f"It needs {package}.", fix=f"pip install {package}"
        )


def hub_set(spec: str) -> HubSet | None:
    """The set a spec names; None when it does not name one: a bare org/name is a path unless it is AI-ModelScope's."""
    match = _SPEC.match(spec)
    if match is None or (match["hub"] is None and not spec.startswith("AI-ModelScope/")):
        return None
    return HubSet(
        hub="hf" if match["hub"] == "hf" else "ms",
        id=match["id"],
        subset=match["subset"],
        revision=match["revision"],
        split=match["split"] or "train",
    )
