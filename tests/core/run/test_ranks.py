"""Which of several deaths was the first, from what was seen in which order."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from core.run.postmortem import Exit, explain_death, last_error, log_tail
from core.run.ranks import Ranks
from planner.types import ProcessId


class World:
    """Two ranks whose life is a set."""

    def __init__(self):
        self.alive = set()
        self.ranks = Ranks(alive=lambda process: process.pid in self.alive)
        self.connections = [SimpleNamespace(is_open=True, is_done=False) for _ in range(2)]
        for rank in range(2):
            self.alive.add(100 + rank)
            process = ProcessId(pid=100 + rank, start_ticks=1, boot_id="b")
            self.ranks.add(rank, process, self.connections[rank])

    def die(self, rank, *, is_open=False):
        self.alive.discard(100 + rank)
        self.connections[rank].is_open = is_open

    def cause(self, tail=()):
        return self.ranks.cause(tail, oom_kills=0)


@pytest.fixture
def world():
    return World()


def test_a_rank_that_says_what_it_dies_of(world):
    world.ranks.record_failure(1, {"kind": "nonfinite", "message": "loss", "step": 5})
    world.ranks.record_failure(0, {"kind": "error", "message": "connection closed by peer"})
    world.die(1)
    world.die(0)
    assert len(world.ranks.newly_dead(0.0, may_be_cause=True)) == 2
    assert world.ranks.newly_dead(1.0, may_be_cause=True) == []
    cause = world.cause()
    assert (cause.kind, cause.message, cause.rank, cause.step) == ("nonfinite", "loss", 1, 5)


def test_a_complaint_about_a_silent_dead_rank_is_not_the_cause(world):
    world.die(1)
    world.ranks.record_failure(0, {"kind": "error", "message": "connection closed by peer"})
    world.ranks.record_exit(Exit(pid=101, rank=1, signal="SIGKILL"))
    assert world.cause().message == "Rank 1, pid 101, was ended by SIGKILL."
    assert world.cause().kind == "worker"


def test_who_we_end_ourselves_is_not_the_cause(world):
    world.die(0)
    assert [rank.number for rank in world.ranks.newly_dead(0.0, may_be_cause=False)] == [0]
    assert world.cause() is None


def test_after_the_launcher_was_killed_ranks_are_no_cause(world):
    world.ranks.close_case()
    world.ranks.record_failure(0, {"kind": "error", "message": "store is gone"})
    world.die(0)
    world.ranks.newly_dead(0.0, may_be_cause=True)
    assert world.cause() is None


def test_a_done_rank_may_leave(world):
    world.connections[0].is_done = True
    world.die(0)
    assert world.ranks.newly_dead(0.0, may_be_cause=True) == []
    assert not world.ranks.has_failed


def test_last_words_are_waited_for(world):
    world.die(0, is_open=True)
    assert world.ranks.newly_dead(0.0, may_be_cause=True) == []
    assert world.ranks.newly_dead(0.9, may_be_cause=True) == []
    assert len(world.ranks.newly_dead(1.1, may_be_cause=True)) == 1


def test_torchrun_knows_the_order_of_deaths(world):
    world.die(0)
    world.die(1)
    world.ranks.newly_dead(0.0, may_be_cause=True)
    world.ranks.record_exit(Exit(pid=101, rank=1, code=1))
    assert not world.ranks.record_exit(Exit(pid=101, rank=1, code=1))
    assert world.cause().rank == 1


def test_an_unknown_kind_of_failure_is_an_error(world):
    world.ranks.record_failure(0, {"kind": "weather"})
    assert (world.cause().kind, world.cause().message) == ("error", "no message")


TRACEBACK = ("[rank1]:   File x", "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB", "W torchrun: bye")


def test_a_death_is_explained_from_its_log():
    assert last_error(TRACEBACK) == "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"
    cause = explain_death(Exit(pid=5, rank=1, code=1), TRACEBACK, oom_kills=0)
    assert cause.kind == "oom"
    assert "exit code 1" in cause.message
    assert "Tried 2 GiB" in cause.message
    missing = explain_death(Exit(pid=5, rank=None, code=1), ["ModuleNotFoundError: No module named 'x'"], oom_kills=0)
    assert missing.kind == "environment"


def test_a_sigkill_beside_an_oom_kill_is_host_memory():
    cause = explain_death(Exit(pid=5, rank=0, signal="SIGKILL"), (), oom_kills=1)
    assert cause.kind == "oom"
    assert "host memory" in cause.message
    assert explain_death(Exit(pid=5, rank=0, signal="SIGKILL"), (), oom_kills=0).kind == "worker"
    assert explain_death(Exit(pid=5, rank=0, signal="SIGSEGV"), (), oom_kills=1).kind == "worker"


def test_the_tail_of_a_log_is_bounded_and_folds_progress_bars(tmp_path):
    path = tmp_path / "train.log"
    assert log_tail(path) == []
    path.write_bytes(b"x" * 200_000 + b"\nfirst\n 1%\r 50%\r100%\r\nlast\n")
    assert log_tail(path)[1:] == ["first", "100%", "last"]
    assert len(log_tail(path)[0]) < 65_536
