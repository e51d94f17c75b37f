"""Shares of several sets: exact counts, the same from the same seed, and what is left out or repeated is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.data.mixture import Draw, check_weights, draw_rows
from core.data.prepare import Request, prepare
from core.data.sources import open_source
from core.data.store import TokenStore
from planner.errors import ConfigError
from planner.types import DataConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    for name, count in (("hundred", 100), ("thirty", 30), ("one", 1)):
        rows = (json.dumps({"text": f"{name} {number}"}) + "\n" for number in range(count))
        (folder / f"{name}.jsonl").write_text("".join(rows))
    return folder


def draws(folder: Path, weights: dict[str, float], seed: int = 0) -> list[Draw]:
    named = {f"{folder}/{name}": weight for name, weight in weights.items()}
    return draw_rows([open_source(name) for name in named], named, seed)


def taken(found: list[Draw]) -> list[int]:
    return [int(draw.copies.sum()) for draw in found if draw.copies is not None]


def test_the_set_that_is_scarce_for_its_weight_gives_all_it_has(folder: Path) -> None:
    found = draws(folder, {"hundred.jsonl": 7, "thirty.jsonl": 3})
    assert taken(found) == [70, 30]
    assert [draw.left_out for draw in found] == [30, 0]
    assert taken(draws(folder, {"hundred.jsonl": 0.9, "thirty.jsonl": 0.1})) == [100, 11]


def test_rows_repeat_only_where_the_name_says_so(folder: Path) -> None:
    found = draws(folder, {"hundred.jsonl": 0.5, "thirty.jsonl#300%": 0.5})
    assert taken(found) == [90, 90]
    assert [draw.copies.max() for draw in found if draw.copies is not None] == [1, 3]
    assert taken(draws(folder, {"hundred.jsonl#20": 2, "thirty.jsonl": 1})) == [20, 10]


def test_the_same_seed_draws_the_same_rows_and_another_seed_others(folder: Path) -> None:
    weights = {"hundred.jsonl": 1, "thirty.jsonl": 1}
    copies = [draws(folder, weights, seed)[0].copies for seed in (1, 1, 2)]
    assert np.array_equal(copies[0], copies[1])
    assert not np.array_equal(copies[0], copies[2])


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_shares_are_met_to_the_row_and_nobody_gives_what_he_has_not(folder: Path, first: float, second: float) -> None:
    weights = {"hundred.jsonl": first, "thirty.jsonl": second}
    if min(first * 30 / second, second * 100 / first) <= 0.5:
        with pytest.raises(ConfigError, match="without a row"):
            draws(folder, weights)
        return
    one, other = taken(draws(folder, weights))
    assert one == 100 or other == 30
    assert one <= 100
    assert other <= 30
    assert abs(one - (one + other) * first / (first + second)) <= 1


def test_weights_that_leave_a_set_without_rows_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"leave .*hundred.jsonl without a row. .*one.jsonl has only 1 rows"):
        draws(folder, {"hundred.jsonl": 0.001, "one.jsonl": 1})


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"a.jsonl": 1}, "b.jsonl has no weight"),
        ({"a.jsonl": 1, "b.json": 1}, "Did you mean 'b.jsonl'"),
        ({"a.jsonl": 0, "b.jsonl": 1}, "above 0"),
        ({"a.jsonl": "much", "b.jsonl": 1}, "'much'"),
        ({"a.jsonl": float("nan"), "b.jsonl": 1}, "above 0"),
    ],
)
def test_weights_must_fit_the_sets(weights: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_weights(("a.jsonl", "b.jsonl"), weights)
    with pytest.raises(ConfigError, match=r"names a\.jsonl twice"):
        check_weights(("a.jsonl", "a.jsonl"), {"a.jsonl": 1})


def test_counting_a_large_set_is_told(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text('{"text": "a"}\n\n' * 9000)
    told: list[tuple[str, float | None]] = []
    (draw,) = draw_rows([open_source(f"{path}#5")], {}, 0, counting=lambda *words: told.append(words))
    assert (draw.available, int(draw.copies.sum())) == (9000, 5)
    assert [name for name, _ in told] == [str(path)] * 2  # every 4,096 rows
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1


def test_the_report_counts_what_each_set_gave(folder: Path, tmp_path: Path, chatml_folder: Path) -> None:
    names = [f"{folder}/hundred.jsonl", f"{folder}/thirty.jsonl#200%"]
    data = DataConfig(train=tuple(names), weights=((names[0], 1.0), (names[1], 3.0)))
    prepared = prepare(Request(data=data, model=str(chatml_folder), max_length=64, cache_dir=str(tmp_path)))
    sets, store = prepared.report["train"]["sets"], TokenStore(prepared.train_store)
    assert [(item["weight"], item["rows"], item["available"], item["left_out"]) for item in sets] == [
        (0.25, 20, 100, 80), (0.75, 60, 30, 0),
    ]  # fmt: skip
    assert sum(item["samples"] for item in sets) == len(store) == 80
    assert sum(item["tokens"] for item in sets) == store.num_tokens
    assert sum(item["targets"] for item in sets) == store.num_targets
    assert prepared.report["train"]["remarks"][:2] == [
        f"{names[0]} gives 20 of 100 rows, its weight is 25.0%.", f"{names[1]} takes 60 rows from 30: rows repeat.",
    ]  # fmt: skip
