"""Files as people have them: every row or a reason, never a traceback, never a silent loss."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data import json_reader, record
from core.data.readers import read_file
from core.data.record import Record

DATA = Path(__file__).parents[2] / "data"


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def values(path: Path) -> list[object]:
    return [record.value for record in read_file(path) if record.kind == "row"]


def bad(path: Path) -> list[tuple[int, str]]:
    return [(record.line, record.problem) for record in read_file(path) if record.kind == "bad"]


def test_malformed_lines_are_named_and_the_others_kept() -> None:
    """Bug case B04i."""
    records = list(read_file(DATA / "k04_malformed.jsonl"))
    assert [(record.line, record.kind) for record in records] == [
        (1, "row"), (2, "blank"), (3, "bad"), (4, "bad"), (5, "row"), (6, "row"), (7, "bad"), (8, "row"), (9, "row"),
        (10, "blank"), (11, "row"),
    ]  # fmt: skip
    assert records[2].problem.startswith("not valid JSON at column 57")
    assert records[6].problem == "the key 'output' appears twice"


def test_a_byte_order_mark_and_crlf_change_nothing(tmp_path: Path) -> None:
    """Bug case B04g."""
    assert [row["instruction"] for row in values(DATA / "k04_bom.jsonl")] == [
        "First row after a BOM",
        "Second",
        "Third",
    ]
    crlf = (DATA / "k04_crlf_unicode.jsonl").read_bytes()
    assert b"\r\n" in crlf
    assert values(DATA / "k04_crlf_unicode.jsonl") == values(write(tmp_path / "lf.jsonl", crlf.replace(b"\r\n", b"\n")))
    text = "one\r\ntwo\r\n"
    assert values(write(tmp_path / "a.txt", "\ufeff" + text)) == [{"text": "one\ntwo\n"}]


def test_utf16_as_windows_programs_write_it(tmp_path: Path) -> None:
    content = '{"text": "第一行\u2028same line"}\r\n{"text": "b"}\r\n'
    for encoding in ("utf-16", "utf-16-be"):
        mark = b"" if encoding == "utf-16" else b"\xfe\xff"
        rows = values(write(tmp_path / f"{encoding}.jsonl", mark + content.encode(encoding)))
        assert rows == [{"text": "第一行\u2028same line"}, {"text": "b"}]
    assert bad(write(tmp_path / "cut.jsonl", b"\xff\xfe\x00")) == [
        (1, "not valid utf-16-le here; the rest is not read")
    ]


def test_a_json_array_is_read_element_by_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(values(DATA / "k04_array.json")) == 2
    monkeypatch.setattr(json_reader, "_CHUNK", 7)  # every element is cut by the end of a chunk
    rows = [{"text": "x" * n, "n": 12345, "list": [1, [2]]} for n in range(40)] + [{"text": "第"}]
    path = write(tmp_path / "a.json", json.dumps(rows, ensure_ascii=False, indent=1))
    assert values(path) == rows
    assert values(write(tmp_path / "numbers.json", "[1, 23, 456]")) == [1, 23, 456]
    assert values(write(tmp_path / "none.json", " [ ] ")) == []


def test_a_broken_array_keeps_what_came_before(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '[{"text": "a"}, {"text": "b", "text": "c"}, {"text": "d"}, {"te')
    assert values(path) == [{"text": "a"}, {"text": "d"}]
    assert [line for line, _ in bad(path)] == [2, 4]
    assert bad(path)[1][1].endswith("the rest of the array is not read")
    assert bad(write(tmp_path / "open.json", '[{"text": "a"}'))[0][1].startswith("the array is not closed")


def test_objects_that_hold_the_rows_or_are_one(tmp_path: Path) -> None:
    assert values(write(tmp_path / "data.json", '{"version": 1, "data": [{"text": "a"}, {"text": "b"}]}')) == [
        {"text": "a"},
        {"text": "b"},
    ]
    one = {"messages": [{"role": "user", "content": "x"}]}
    assert values(write(tmp_path / "one.json", json.dumps(one, indent=2))) == [one]
    assert values(write(tmp_path / "lines.json", '{"text": "a"}\n{"text": "b"}\n')) == [{"text": "a"}, {"text": "b"}]


def test_csv_cells_and_rows_of_the_wrong_width(tmp_path: Path) -> None:
    """Bug case B04k, the table."""
    rows = values(DATA / "k04_alpaca_blank_cells.csv")
    assert rows == [
        {"instruction": "Name a gas.", "input": None, "output": "Neon."},
        {"instruction": "Blank answer", "input": None, "output": None},
        {"instruction": "Quoted, comma", "input": "x", "output": "multi\nline"},
    ]
    path = write(tmp_path / "a.csv", 'q;a\n"x\ny";1\nlone\n;\n"p";2\n')
    assert [(record.line, record.kind) for record in read_file(path)] == [
        (2, "row"),
        (4, "bad"),
        (5, "blank"),
        (6, "row"),
    ]
    assert bad(path) == [(4, "1 cells, the header has 2")]
    assert bad(write(tmp_path / "b.csv", "q,q\n1,2\n"))[0][1].endswith("names a column twice or not at all")
    assert bad(write(tmp_path / "c.csv", b"q,a\nok,1\n\xff,2\nok,3\n")) == [(3, "not valid UTF-8")]
    assert bad(write(tmp_path / "d.csv", 'q,a\nx,"never closed\n'))[0][1].startswith("not valid CSV")
    assert values(write(tmp_path / "e.tsv", "q\ta\nx\ty, z\n")) == [{"q": "x", "a": "y, z"}]


def test_gzip_whole_and_damaged(tmp_path: Path) -> None:
    lines = b"".join(b'{"text": "%d %s"}\n' % (n, b"x" * (n % 97)) for n in range(20_000))
    packed = gzip.compress(lines)
    assert len(values(write(tmp_path / "a.jsonl.gz", packed))) == 20_000
    cut = write(tmp_path / "b.jsonl.gz", packed[: len(packed) // 2])
    assert 0 < len(values(cut)) < 20_000
    assert bad(cut)[-1][1].startswith("damaged gzip data here")
    assert bad(write(tmp_path / "c.jsonl.gz", b"no gzip at all"))[0][0] == 1


def test_what_cannot_be_utf8_is_named_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"text": "a"}\n{"text": "\xe9"}\n{"text": "c"}\n')
    assert values(path) == [{"text": "a"}, {"text": "c"}]
    assert bad(path) == [(2, "not valid UTF-8 at byte 10 of the line")]
    assert bad(write(tmp_path / "a.txt", b"one\ntwo \xe9\n")) == [(2, "not valid UTF-8 at byte 8 of the file")]
    assert bad(write(tmp_path / "a.json", b'[{"text": "\xe9"}, {"text": "b"}]')) == [(1, "not valid UTF-8")]


def test_a_line_beyond_the_limit_is_skipped_without_holding_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_RECORD_BYTES", 1 << 20)
    path = write(tmp_path / "a.jsonl", b'{"text": "a"}\n{"text": "' + b"x" * (3 << 20) + b'"}\n{"text": "c"}\n')
    assert values(path) == [{"text": "a"}, {"text": "c"}]
    assert bad(path) == [(2, "longer than 1 MiB")]


def test_strange_json_is_a_reason_not_a_crash(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "[" * 100_000 + "\n" + '{"n": ' + "9" * 5000 + '}\n{"a": 1} {"b": 2}\n')
    assert [line for line, _ in bad(path)] == [1, 2, 3]
    assert bad(path)[2][1].endswith("something follows the value")


def test_empty_files_hold_nothing_and_a_missing_right_is_told(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.json", "a.csv", "a.txt", "a.md"):
        assert list(read_file(write(tmp_path / name, b""))) == []
    assert bad(tmp_path)[0][1].startswith("cannot be read")


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=300), suffix=st.sampled_from(["jsonl", "json", "csv", "tsv", "txt", "jsonl.gz"]))
def test_any_bytes_whatever_give_records(content: bytes, suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write(tmp_path_factory.getbasetemp() / f"fuzz.{suffix}", content)
    for found in read_file(path):
        assert isinstance(found, Record)
        assert (found.kind == "bad") == bool(found.problem)
