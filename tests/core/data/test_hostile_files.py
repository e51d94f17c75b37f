"""Hostile files through the whole of prepare: stores with one fate a row, or an error in words; never anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.data.prepare import Request, prepare
from core.data.store import TokenStore
from planner.errors import ConfigError
from planner.types import DataConfig
from tests.core.data.test_shapes import json_values

texts = st.text(st.characters(codec=None), max_size=20)  # lone surrogates, NUL and control characters included
turns = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "human", "x"]), "content": texts}
    ),
    max_size=4,
)
rows = st.one_of(
    json_values,
    st.fixed_dictionaries({"messages": turns}),
    st.fixed_dictionaries({"instruction": texts, "output": texts}),
    st.fixed_dictionaries({"prompt": texts, "completion": texts}),
    st.fixed_dictionaries({"text": texts}),
)
lines = st.one_of(rows.map(lambda row: json.dumps(row).encode()), st.binary(max_size=40), st.just(b""))


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    content=st.lists(lines, max_size=8),
    ends=st.sampled_from([b"\n", b"\r\n"]),
    policy=st.sampled_from(["drop", "truncate_left", "truncate_right", "split"]),
    train_on=st.sampled_from(["assistant", "last", "all"]),
    max_length=st.integers(2, 40),
)
def test_any_file_gives_stores_or_words(
    chatml_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    content: list[bytes],
    ends: bytes,
    policy: Any,
    train_on: Any,
    max_length: int,
) -> None:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "a.jsonl").write_bytes(ends.join(content))
    data = DataConfig(
        train=(str(folder / "a.jsonl"),), on_bad_row="skip", over_length=policy, train_on=train_on, eval_fraction=0.3
    )
    try:
        prepared = prepare(
            Request(data=data, model=str(chatml_folder), max_length=max_length, cache_dir=str(folder / "cache"))
        )
    except ConfigError:
        return
    fates = prepared.report["train"]["rows"]
    assert fates["read"] == sum(fates[name] for name in ("kept", "truncated", "split", "dropped", "bad"))
    for store in map(TokenStore, filter(None, (prepared.train_store, prepared.eval_store))):
        assert 1 <= store.lengths.min() <= store.lengths.max() <= max_length
        assert (store.target_counts > 0).all()
        assert not store.targets[np.asarray(store.offsets[:-1])].any()  # no first token is a target
    json.dumps(prepared.report)


def test_a_damaged_table_among_good_files_costs_only_itself(
    chatml_folder: Path, tmp_path: Path, minimal_parquet: Callable[[Path], None]
) -> None:
    minimal_parquet(tmp_path / "data" / "good.parquet")
    broken = tmp_path / "data" / "broken.parquet"
    broken.write_bytes((tmp_path / "data" / "good.parquet").read_bytes()[:-20])
    data = DataConfig(train=(str(tmp_path / "data"),), on_bad_row="skip")
    report = prepare(
        Request(data=data, model=str(chatml_folder), max_length=64, cache_dir=str(tmp_path / "cache"))
    ).report["train"]
    assert (report["rows"]["kept"], report["rows"]["bad"]) == (2, 1)
    assert report["problems"]["first"][0]["file"] == str(broken)


@pytest.fixture
def minimal_parquet() -> Callable[[Path], None]:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist([{"question": "a", "answer": "b"}] * 2), path)

    return write
