"""Files, folders, globs and samples; a wrong name gets the nearest right one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.data.mixture import draw_rows
from core.data.sources import open_source
from planner.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep" / ".hidden").mkdir(parents=True)
    (tmp_path / "b.jsonl").write_text('{"text": "b1"}\n\n{"text": "b2"}\n')
    (tmp_path / "deep" / "a.md").write_text("# doc\n")
    (tmp_path / "deep" / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "deep" / ".hidden" / "x.jsonl").write_text('{"text": "no"}\n')
    return tmp_path


def texts(spec: str, seed: int = 0) -> list[str]:
    source = open_source(spec)
    (draw,) = draw_rows([source], {}, seed)
    return [record.value["text"] for _, record in source.records(draw.copies) if record.kind == "row"]


def test_a_folder_gives_its_readable_files_sorted_and_counts_the_others(folder: Path) -> None:
    source = open_source(str(folder))
    assert [part.name for part in source.parts] == [str(folder / "b.jsonl"), str(folder / "deep/a.md")]
    assert source.passed_over == {".png": 1}


def test_globs(folder: Path) -> None:
    assert texts(str(folder / "**/*.md")) == ["# doc\n"]
    with pytest.raises(ConfigError, match="No file matches"):
        open_source(str(folder / "*.csv"))


def test_a_wrong_name_gets_the_nearest(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean .*b\.jsonl"):
        open_source(str(folder / "b.json"))


def test_a_folder_of_other_things_says_what_it_holds(folder: Path) -> None:
    (folder / "deep" / "a.md").unlink()
    with pytest.raises(ConfigError, match=r"holds nothing that can be read. It holds 1 .png"):
        open_source(str(folder / "deep"))


def test_sampling_is_deterministic_in_file_order_and_without_repeats(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "{n:03}"}}\n' for n in range(100)))
    picked = texts(f"{path}#10", seed=1)
    assert picked == texts(f"{path}#10", seed=1)
    assert picked != texts(f"{path}#10", seed=2)
    assert picked == sorted(set(picked))
    assert len(picked) == 10
    assert len(texts(f"{path}#30%")) == 30


def test_more_than_there_is_repeats_whole_copies(folder: Path) -> None:
    assert texts(f"{folder}/b.jsonl#4") == ["b1", "b1", "b2", "b2"]
    assert sorted(set(texts(f"{folder}/b.jsonl#5"))) == ["b1", "b2"]
    assert len(texts(f"{folder}/b.jsonl#5")) == 5
    assert len(texts(f"{folder}/b.jsonl#250%")) == 5


def test_an_existing_file_wins_over_the_sampling_reading(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl#2").write_text("whole")
    assert open_source(str(tmp_path / "a.jsonl#2")).amount is None


def test_a_pipe_is_refused_before_anybody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ConfigError, match=r"no file but a pipe, .* Save it to a file first"):
        open_source(f"{tmp_path}/pipe.jsonl#5")


def test_asking_for_no_rows_is_an_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match="asks for no rows"):
        open_source(f"{folder}/b.jsonl#0")
