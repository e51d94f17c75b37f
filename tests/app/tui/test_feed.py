"""app/tui/feed.py: one run taken in piece by piece."""

from app.tui.feed import RunFeed
from tests.app.runs import append, append_steps, make_run


def test_a_long_run_comes_in_pieces_and_nothing_twice(tmp_path):
    run_dir = make_run(tmp_path, steps=0)
    append_steps(run_dir, 1, 30_000)  # more than one poll takes
    feed = RunFeed(run_dir)
    assert feed.poll() is True
    assert 0 < feed.loss.num_rows < 33_000
    while feed.poll():
        pass
    assert feed.loss.num_rows == 33_000
    assert len(feed.loss.raw.points) <= feed.loss.raw.capacity
    assert feed.poll() is False
    assert feed.loss.num_rows == 33_000


def test_rows_taken_back_by_a_resume_leave_the_curve(tmp_path):
    run_dir = make_run(tmp_path, steps=40)
    feed = RunFeed(run_dir)
    feed.poll()
    kept = (run_dir / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:20]
    replaced = run_dir / "metrics.new"
    replaced.write_bytes(b"".join(kept))
    replaced.rename(run_dir / "metrics.jsonl")
    feed.poll()
    assert feed.loss.num_rows == 20


def test_the_post_mortem_goes_when_the_run_is_resumed(tmp_path):
    run_dir = make_run(tmp_path, status="failed")
    feed = RunFeed(run_dir)
    feed.poll()
    assert feed.postmortem["kind"] == "oom"
    process = {"pid": 200, "attempt": 2, "start_ticks": 1, "boot_id": "b"}
    append(run_dir / "events.jsonl", {"time": 2e9, "type": "supervisor", "data": process})
    feed.poll()
    assert feed.state.attempt == 2
    assert feed.postmortem == {}
