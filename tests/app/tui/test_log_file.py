"""app/tui/log_file.py: lines of a growing file by number, without reading it again."""

import time

from app.tui.log_file import LogFile, severity_of


def test_lines_appear_as_they_are_written_and_unfinished_ones_too(tmp_path):
    path = tmp_path / "log"
    log = LogFile(path)
    assert log.refresh() is False
    assert len(log) == 0
    path.write_bytes(b"one\ntwo\nthr")
    assert log.refresh() is True
    assert log.lines(0, 9) == ["one", "two", "thr"]
    with path.open("ab") as file:
        file.write(b"ee\nfour\n")
    log.refresh()
    assert log.lines(2, 4) == ["three", "four"]
    assert len(log) == 4
    assert log.refresh() is False


def test_a_replaced_or_cut_file_starts_anew(tmp_path):
    path = tmp_path / "log"
    path.write_text("a\nb\nc\n")
    log = LogFile(path)
    log.refresh()
    path.write_text("x\n")
    log.refresh()
    assert log.lines(0, 9) == ["x"]
    assert log.generation == 1
    other = tmp_path / "other"
    other.write_text("y\nz\nw\n")
    other.rename(path)
    log.refresh()
    assert log.lines(0, 9) == ["y", "z", "w"]
    assert log.generation == 2


def test_progress_bars_show_what_they_last_said_and_bad_bytes_do_not_stop_it(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"10%\r50%\r100%\r\n\xff\xfebad\r\n\n")
    log = LogFile(path)
    log.refresh()
    assert log.lines(0, 3) == ["100%", "\\xff\\xfebad", ""]


def test_search_goes_both_ways_and_around_the_end(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(f"line {i}{' HIT' if i in (3, 9000) else ''}\n" for i in range(10_000)))
    log = LogFile(path)
    log.refresh()
    assert log.find("hit", 0) == 3
    assert log.find("hit", 4) == 9000
    assert log.find("hit", 9001) == 3
    assert log.find("hit", 8999, backwards=True) == 3
    assert log.find("hit", 2, backwards=True) == 9000
    assert log.find("hit", 3, backwards=True) == 3
    assert log.find("nothing", 0) is None


def test_fifty_megabytes_open_quickly_and_scroll_without_rereading(tmp_path):
    path = tmp_path / "log"
    line = b"x" * 99 + b"\n"
    with path.open("wb") as file:
        for _ in range(50):
            file.write(line * 10_000)
    log = LogFile(path)
    start = time.perf_counter()
    log.refresh()
    assert len(log) == 500_000
    assert time.perf_counter() - start < 5  # a fraction of a second alone on a core; the machine may be busy
    start = time.perf_counter()
    for first in range(0, 500_000, 50_000):
        assert len(log.lines(first, first + 40)) == 40
    assert time.perf_counter() - start < 0.5


def test_a_line_of_a_megabyte_is_shown_in_part(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"y" * 1_000_000 + b"\nend\n")
    log = LogFile(path)
    log.refresh()
    assert len(log.lines(0, 1)[0]) == 1 << 14
    assert log.lines(1, 2) == ["end"]


def test_lines_beside_a_line_of_a_megabyte_are_not_lost(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"a\n" + b"y" * 1_000_000 + b"\nend\nlast\n")
    log = LogFile(path)
    log.refresh()
    assert [line[:4] for line in log.lines(0, 4)] == ["a", "yyyy", "end", "last"]
    assert log.find("last", 0) == 3


def test_search_ignores_what_a_progress_bar_overwrote_and_finds_other_alphabets(tmp_path):
    path = tmp_path / "log"
    path.write_bytes("50% HIT\r100% done\n长文本 Été\n".encode())
    log = LogFile(path)
    log.refresh()
    assert log.find("hit", 0) is None
    assert log.find("长文本", 0) == 1
    assert log.find("été", 0) == 1


def test_severe_lines_are_found_once_and_as_they_come(tmp_path):
    path = tmp_path / "log"
    path.write_text("fine\nWARNING: slow disk\nTraceback (most recent call last)\nfine, unfinished erro")
    log = LogFile(path)
    log.refresh()
    assert list(log.severe("error")) == [2]
    assert list(log.severe("warning")) == [1, 2]
    with path.open("a") as file:
        file.write("r\nfine\nCUDA out of memory\n")
    log.refresh()
    assert list(log.severe("error")) == [2, 3, 5]
    assert list(log.severe("warning")) == [1, 2, 3, 5]
    path.write_text("no error\n")
    log.refresh()
    assert list(log.severe("error")) == [0]


def test_a_line_says_how_severe_it_is():
    assert severity_of("RuntimeError: x") == "error"
    assert severity_of("UserWarning: x") == "warning"
    assert severity_of("step 1") is None
