from __future__ import annotations

import signal

import pytest

from core.run.stop_ladder import Ending, next_rung
from planner.types import ProcessId

LAUNCHER, RANK, HELPER = (ProcessId(pid=pid, start_ticks=1, boot_id="b") for pid in (10, 11, 12))


class Signals:
    def __init__(self):
        self.sent = []

    def __call__(self, process, number):
        self.sent.append((process.pid, number))
        return True

    def take(self):
        sent, self.sent = self.sent, []
        return sent


@pytest.mark.parametrize(
    ("current", "asked", "expected"),
    [(None, "save", "save"), (None, "kill", "kill"), ("save", "save", "now"), ("now", "save", "kill"),
     ("save", "kill", "kill"), ("kill", "save", "kill")],
)  # fmt: skip
def test_who_asks_again_skips_a_rung(current, asked, expected):
    assert next_rung(current, asked) == expected


def test_sigterm_once_then_sigkill_and_the_launcher_last():
    signals = Signals()
    ending = Ending(100.0, grace_seconds=2.0, send=signals)
    ending.act(100.0, launcher=LAUNCHER, others=[RANK], had_ranks=True)
    ending.act(100.5, launcher=LAUNCHER, others=[RANK], had_ranks=True)
    assert signals.take() == [(11, signal.SIGTERM)]
    ending.act(102.0, launcher=LAUNCHER, others=[RANK], had_ranks=True)
    assert signals.take() == [(11, signal.SIGKILL)]
    ending.act(102.5, launcher=LAUNCHER, others=[], had_ranks=True)
    assert signals.take() == []  # it may still tell how its ranks ended
    ending.act(104.0, launcher=LAUNCHER, others=[], had_ranks=True)
    assert signals.take() == [(10, signal.SIGKILL)]


def test_a_process_that_appears_in_between_gets_the_same():
    signals = Signals()
    ending = Ending(0.0, grace_seconds=2.0, send=signals)
    ending.act(0.0, launcher=None, others=[RANK], had_ranks=True)
    ending.act(1.0, launcher=None, others=[RANK, HELPER], had_ranks=True)
    assert signals.take() == [(11, signal.SIGTERM), (12, signal.SIGTERM)]


def test_a_launcher_without_ranks_has_nothing_to_tell():
    signals = Signals()
    ending = Ending(0.0, grace_seconds=2.0, send=signals)
    ending.act(0.0, launcher=LAUNCHER, others=[], had_ranks=False)
    ending.act(0.1, launcher=LAUNCHER, others=[], had_ranks=False)
    assert signals.take() == [(10, signal.SIGTERM)]


def test_a_kill_spares_nobody_and_takes_the_launcher_first():
    signals = Signals()
    Ending(0.0, grace_seconds=0.0, send=signals).act(0.0, launcher=LAUNCHER, others=[RANK, HELPER], had_ranks=True)
    assert signals.take() == [(10, signal.SIGKILL), (11, signal.SIGKILL), (12, signal.SIGKILL)]


def test_hastening_never_puts_the_end_off():
    signals = Signals()
    ending = Ending(0.0, grace_seconds=1.0, send=signals)
    ending.hasten(0.5, grace_seconds=10.0)
    ending.act(1.0, launcher=None, others=[RANK], had_ranks=True)
    assert signals.take() == [(11, signal.SIGKILL)]
    ending = Ending(0.0, grace_seconds=10.0, send=signals)
    ending.hasten(1.0, grace_seconds=0.0)
    ending.act(1.0, launcher=LAUNCHER, others=[RANK], had_ranks=True)
    assert signals.take() == [(10, signal.SIGKILL), (11, signal.SIGKILL)]
