from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from core.run.atomic import atomic_write
from core.run.jsonl import JsonlTail, encode_line, read_rows, repair_end


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_line_without_its_end_waits_for_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    tail = JsonlTail(path)
    assert tail.read() == []  # no file yet
    append(path, '{"step": 1}\n{"st')
    assert tail.read() == [{"step": 1}]
    assert tail.offset == len('{"step": 1}\n')
    assert tail.read() == []
    append(path, 'ep": 2}\n')
    assert tail.read() == [{"step": 2}]
    assert tail.num_bad_lines == 0


def test_a_character_cut_in_two_is_read_whole(tmp_path):
    path = tmp_path / "rows.jsonl"
    line = '{"text": "项目"}\n'.encode()
    tail = JsonlTail(path)
    path.write_bytes(line[:12])
    assert tail.read() == []
    path.write_bytes(line)
    assert tail.read() == [{"text": "项目"}]


def test_bad_lines_are_skipped_and_counted(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\nnot json\n[1, 2]\n\n{"b": 2}\n')
    tail = JsonlTail(path)
    assert tail.read() == [{"a": 1}, {"b": 2}]
    assert tail.num_bad_lines == 2


def test_each_read_is_bounded_and_nothing_is_lost(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"step": step} for step in range(100)]
    path.write_bytes(b"".join(map(encode_line, rows)))
    tail = JsonlTail(path, max_bytes=64)
    first = tail.read()
    assert 0 < len(first) <= 64 // len('{"step":0}\n')
    found = first
    while more := tail.read():
        found += more
    assert found == rows
    assert read_rows(path) == rows


def test_a_line_of_a_megabyte_is_read_in_pieces(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(encode_line({"text": "x" * 1_000_000}) + encode_line({"b": 2}))
    first, second = JsonlTail(path, max_bytes=4096).read()
    assert len(first["text"]) == 1_000_000
    assert second == {"b": 2}


def test_a_line_beyond_all_bounds_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("core.run.jsonl._MAX_LINE_BYTES", 1000)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(encode_line({"text": "x" * 5000}) + encode_line({"b": 2}))
    tail = JsonlTail(path, max_bytes=512)
    assert tail.read() == [{"b": 2}]
    assert tail.num_bad_lines == 1


def test_a_replaced_file_is_read_anew_and_the_reader_is_told(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    tail = JsonlTail(path)
    tail.read()
    atomic_write(path, '{"step": 1}\n{"step": 9}\n{"step": 10}\n')
    assert tail.generation == 0
    assert tail.read() == [{"step": 1}, {"step": 9}, {"step": 10}]
    assert tail.generation == 1


def test_a_cut_file_is_read_anew(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    tail = JsonlTail(path)
    tail.read()
    path.write_text('{"step": 7}\n')
    assert tail.read() == [{"step": 7}]
    assert tail.generation == 1


def test_reading_starts_at_an_offset(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"b": 2}\n')
    assert JsonlTail(path, offset=9).read() == [{"b": 2}]


def test_nonfinite_numbers_become_null_where_they_stand():
    row = {"loss": math.nan, "data": {"norm": math.inf, "step": 3}, "fine": {"x": 1.5}, "all": [1.0, -math.inf]}
    assert json.loads(encode_line(row)) == {
        "loss": None, "data": {"norm": None, "step": 3, "nonfinite": True}, "fine": {"x": 1.5}, "all": [1.0, None],
        "nonfinite": True,
    }  # fmt: skip


def test_what_json_has_no_word_for_is_written_all_the_same():
    row = {"loss": np.float32(0.5), "nan": np.float32("nan"), "ids": np.arange(3), "path": Path("a/b"), "set": {1}}
    assert json.loads(encode_line(row)) == {
        "loss": 0.5, "nan": None, "ids": [0, 1, 2], "path": "a/b", "set": [1], "nonfinite": True,
    }  # fmt: skip


def test_the_end_of_a_killed_writer_is_repaired(tmp_path):
    path = tmp_path / "rows.jsonl"
    repair_end(path)  # no file: nothing to do
    path.write_text('{"a": 1}\n{"b": ')
    repair_end(path)
    assert path.read_text() == '{"a": 1}\n'
    path.write_text('{"a": 1}\n{"b": 2}')
    repair_end(path)
    assert path.read_text() == '{"a": 1}\n{"b": 2}\n'
