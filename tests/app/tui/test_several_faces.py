"""Several terminal interfaces on one run: they see the same, each may stop it, and none of them is the run."""

from app.tui.app import LongfitApp
from core.run.control import submit_stop, take_commands
from core.run.directory import open_run
from tests.app.runs import append, append_steps, make_run
from tests.app.tui.conftest import drawn, screen_text, words
from tests.app.tui.fakes import FakeServices


class Stopping(FakeServices):
    """Stops as the real services do, but for the look whether the supervisor lives."""

    def stop(self, run, mode):
        submit_stop(run.control, mode)


async def test_two_faces_agree_on_what_a_run_has_done(tmp_path):
    run = make_run(tmp_path)
    first, second = LongfitApp(FakeServices(), run_dir=run), LongfitApp(FakeServices(), run_dir=run)
    async with first.run_test(size=(80, 24)) as one:
        await drawn(one)
        append_steps(run, 41, 60)
        async with second.run_test(size=(80, 24)) as other:
            await drawn(other)
            seen = screen_text(second)
        await drawn(one)
        assert screen_text(first) == seen
        assert "step 60 of 100" in seen


async def test_a_stop_from_one_face_is_seen_by_the_other_and_by_the_supervisor_once_each(tmp_path):
    run = make_run(tmp_path)
    first, second = LongfitApp(Stopping(), run_dir=run), LongfitApp(Stopping(), run_dir=run)
    async with first.run_test(size=(80, 24)) as one:
        await drawn(one)
        await one.press("x")
    async with second.run_test(size=(80, 24)) as other:
        await drawn(other)
        commands, problems = take_commands(open_run(run).control)
        assert [command.mode for command in commands] == ["save"]
        assert problems == ()
        append(run / "events.jsonl", {"time": 2e9, "type": "stop_requested", "data": {"mode": "save"}})
        await drawn(other)
        assert "STOPPING" in words(other.app)


async def test_leaving_one_face_leaves_the_run_and_the_other_alone(tmp_path):
    run = make_run(tmp_path)
    first, second = LongfitApp(FakeServices(), run_dir=run), LongfitApp(FakeServices(), run_dir=run)
    async with second.run_test(size=(80, 24)) as other:
        async with first.run_test(size=(80, 24)) as one:
            await drawn(one)
            await one.press("q")
        assert list(open_run(run).control.iterdir()) == []
        append_steps(run, 41, 45)
        await drawn(other)
        assert "step 45 of 100" in screen_text(second)
