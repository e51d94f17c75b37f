from __future__ import annotations

from core.run.log_tail import LogTail


def test_new_lines_only_and_the_unfinished_one_apart(tmp_path):
    path = tmp_path / "train.log"
    tail = LogTail(path)
    assert tail.read() == []
    path.write_bytes(b"one\ntwo\nthr")
    assert tail.read() == ["one", "two"]
    assert tail.unfinished == "thr"
    with path.open("ab") as file:
        file.write("ee \u00fc\n".encode())
    assert tail.read() == ["three \u00fc"]


def test_a_progress_bar_is_what_it_last_said(tmp_path):
    path = tmp_path / "train.log"
    path.write_bytes(b"start\n" + b"".join(b"%d%%\r" % percent for percent in range(100_000)))
    tail = LogTail(path)
    assert tail.read() == ["start"]
    assert tail.unfinished == "99999%"
    with path.open("ab") as file:
        file.write(b"done\r\n")
    assert tail.read() == ["done"]


def test_it_can_begin_near_the_end(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    assert LogTail(path, last_bytes=20).read() == ["line 998", "line 999"]
    assert len(LogTail(path, last_bytes=10**6).read()) == 1000


def test_a_replaced_log_is_read_anew(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("old\n")
    tail = LogTail(path)
    tail.read()
    path.write_text("n\n")
    assert tail.read() == ["n"]
