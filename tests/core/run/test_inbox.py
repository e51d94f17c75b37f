"""What the supervisor writes of what ranks say: memory rows are thinned, and no highest value is ever lost."""

from types import SimpleNamespace

from core.run import inbox as module
from core.run.inbox import MEMORY_ROW_SECONDS, Inbox
from core.run.ranks import Ranks


class Pages:
    def __init__(self):
        self.rows = []

    def memory(self, row):
        self.rows.append(row)


def test_memory_rows_that_hold_nothing_new_are_written_every_ten_seconds(monkeypatch):
    pages, clock = Pages(), SimpleNamespace(now=0.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)
    inbox = Inbox(pages, Ranks(), is_resume=False)
    connection = SimpleNamespace(rank=0)

    def say(size, instant="backward", *, step):
        row = {"rank": 0, "step": step, "instant": instant, "allocated_bytes": size}
        inbox.take(connection, {"kind": "memory", "row": row})

    say(100, step=1)
    say(100, step=2)
    say(90, "forward", step=2)
    clock.now = 1.0
    say(101, step=3)
    say(99, step=4)
    clock.now = 1.0 + MEMORY_ROW_SECONDS
    say(99, step=5)
    say(100, step=6)
    assert [(row["step"], row["instant"]) for row in pages.rows] == [
        (1, "backward"), (2, "forward"), (3, "backward"), (5, "backward"),
    ]  # fmt: skip
    assert inbox.memory[0]["step"] == 6
    assert inbox.peaks[0]["allocated_bytes"] == 101
