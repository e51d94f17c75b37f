"""A run of days: the screen is whole after a small part of its files, each byte is read once, scrolling reads lines."""

import sys

import pytest

from app.services.runs import RunFollower
from app.tui.app import LongfitApp
from app.tui.feed import LONG_BYTES, RunFeed
from app.tui.widgets.log_view import LogView
from benchmarks.tui_long_run import bytes_read, is_whole, write_long_run
from core.run.jsonl import read_rows
from tests.app.tui.conftest import screen_text

ROWS = 40_000
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/io counts the bytes")


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    return write_long_run(tmp_path_factory.mktemp("runs"), num_rows=ROWS, log_bytes=8_000_000)


def size_of(run, *names):
    return sum((run / f"{name}").stat().st_size for name in names)


def test_the_first_look_reads_a_part_and_the_rest_is_read_once(long_run):
    assert size_of(long_run, "metrics.jsonl") > LONG_BYTES
    whole = size_of(long_run, "metrics.jsonl", "memory.jsonl", "events.jsonl", "train.log")
    start = bytes_read()
    feed = RunFeed(long_run)
    assert feed.poll() is True
    first = bytes_read() - start
    curves = size_of(long_run, "metrics.jsonl", "memory.jsonl")
    assert first < whole - 0.8 * curves  # events and log are indexed whole, of the curves a sample is taken
    assert feed.is_sampled
    assert feed.loss.last["step"] == ROWS
    assert feed.loss.num_rows == pytest.approx(ROWS, rel=0.02)
    assert feed.loss.tokens_seen == pytest.approx(8192 * ROWS, rel=0.02)
    assert feed.state.step == ROWS
    assert len(feed.log) == ROWS
    while feed.poll():
        pass
    assert not feed.is_sampled
    assert feed.loss.num_rows == ROWS + ROWS // 1000
    assert feed.loss.tokens_seen == 8192 * ROWS
    assert bytes_read() - start < whole + first
    before = bytes_read()
    for _ in range(10):
        feed.poll()
    assert bytes_read() - before < 100_000


def test_a_sample_finds_the_peak_and_the_full_reading_every_row(long_run):
    feed = RunFeed(long_run)
    feed.poll()
    sampled = feed.memory.ranks[0].peak_bytes
    while feed.poll():
        pass
    rows = [row for row in read_rows(long_run / "memory.jsonl") if "rank" in row]
    assert feed.memory.ranks[0].peak_bytes == max(row["allocated_bytes"] for row in rows) == sampled


def test_events_of_the_folded_past_are_told_without_their_steps(long_run):
    update = RunFollower(RunFeed(long_run).run, log_bytes=0).read()
    assert [event.type for event in update.events] == ["created", "supervisor", "worker", "running"]
    assert update.state.step == ROWS


async def test_the_screen_is_whole_at_once_and_scrolling_does_not_read_the_file_again(long_run):
    app = LongfitApp(run_dir=long_run)
    async with app.run_test(size=(120, 40)) as pilot:
        while not is_whole(app):
            await pilot.pause(0.01)
        await pilot.pause(0.1)
        feed = app.screen.feed
        assert f"step {ROWS}/" in screen_text(app, "#log")
        while feed.is_sampled:
            await pilot.pause(0.05)
        await pilot.pause(0.8)
        log = app.screen.query_one(LogView)
        before, keys = bytes_read(), ["home", *["pagedown"] * 20, "end", *["pageup"] * 20]
        for key in keys:
            await pilot.press(key)
        await pilot.pause(0.3)
        line_bytes = (long_run / "train.log").stat().st_size / ROWS
        # each key is drawn in a few frames of a window of lines; the file has 8 MB
        assert bytes_read() - before < 12 * len(keys) * line_bytes * log.size.height
        assert not log.follow
