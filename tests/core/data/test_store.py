"""The token store: whole or absent, exact, and clear about damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.data.store import StoreWriter, TokenStore
from planner.errors import ConfigError


def write(path: Path, samples: list[list[int]]) -> TokenStore:
    with StoreWriter(path) as writer:
        for line, tokens in enumerate(samples, 1):
            writer.add(np.array(tokens), np.ones(len(tokens), bool), line=line)
        return writer.finish(sources=("a.jsonl",))


def test_samples_come_back_as_written(tmp_path: Path) -> None:
    store = write(tmp_path / "s", [[7, 8, 9], [1], [2**31 - 1, 5]])
    assert [store.sample(i)[0].tolist() for i in range(3)] == [[7, 8, 9], [1], [2**31 - 1, 5]]
    assert store.lengths.tolist() == [3, 1, 2]
    assert store.target_counts.tolist() == [2, 0, 1]  # the first token of a sample is never predicted
    assert (store.num_samples, store.num_tokens, store.num_targets) == (3, 6, 3)
    assert store.origin(1) == "a.jsonl:2"


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with StoreWriter(tmp_path / "s") as writer:
            writer.add(np.array([1, 2]), np.array([True, True]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_the_second_of_two_writers_of_one_store_gives_way(tmp_path: Path) -> None:
    first = write(tmp_path / "s", [[1, 2]])
    second = write(tmp_path / "s", [[1, 2]])
    assert first.path == second.path
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("name", ["tokens.bin", "targets.bin", "offsets.bin", "counts.bin", "origins.bin"])
def test_a_shortened_file_is_noticed(tmp_path: Path, name: str) -> None:
    store = write(tmp_path / "s", [[1, 2, 3]])
    file = store.path / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=rf"damaged: {name}"):
        TokenStore(store.path)


def test_a_folder_that_is_no_store_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Prepare the data again"):
        TokenStore(tmp_path)


def test_arrays_cannot_be_changed(tmp_path: Path) -> None:
    store = write(tmp_path / "s", [[1, 2, 3]])
    with pytest.raises(ValueError, match="read-only"):
        store.tokens[0] = 5
