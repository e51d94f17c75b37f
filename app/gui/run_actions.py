"""What the Run tab does, without widgets: find a run, show it from its directory, stop, kill and resume it.

Called by run_tab.py. Everything shown is read from the run directory; nothing of a run lives in the server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from app.gui import run_html
from app.gui.messages import error_html
from app.gui.run_reader import RunReaders
from app.services import control, launch
from app.services.locations import default_runs_dir
from app.services.runs import list_runs, snapshot
from app.views.run_view import status_view
from core.run.directory import RunDirectory, open_run
from planner.errors import LongfitError, RunNotFound
from planner.types import RunState

KILL_SECONDS = 5.0  # the second click counts within this time


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What the tab shows of one run. ``version`` is that of the charts, events and log: equal means not to redraw."""

    status: str
    word: str = ""  # of the state, as it stands in the list of runs
    progress: str = ""
    rates: str = ""
    loss: str = ""
    memory: str = ""
    events: str = ""
    log: str = ""
    failure: str = ""
    command: str = ""
    version: int = 0
    stop_words: str = "Save and stop"
    can_stop: bool = False
    can_kill: bool = False
    can_resume: bool = False
    resume_words: str = ""  # what Resume would do, or why it cannot


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    id: str
    words: str


class RunActions:
    """The runs of one folder."""

    def __init__(self, runs_root: Path | None = None) -> None:
        self.root = runs_root or default_runs_dir()
        self.readers = RunReaders()

    def choices(self) -> list[RunChoice]:
        """Newest first."""
        return [RunChoice(id=run.id, words=run_html.run_words(run.id, run.state)) for run in list_runs(self.root).runs]

    def first_choice(self, wanted: str = "") -> str:
        """``wanted`` when there is such a run, else the newest live one, else the newest, else ""."""
        runs = list_runs(self.root).runs
        preferred = (
            *(run.id for run in runs if run.id == wanted), *(run.id for run in runs if run.is_live),
            *(run.id for run in runs),
        )  # fmt: skip
        return next(iter(preferred), "")

    def open(self, run_id: str) -> RunDirectory:
        """Only a run of our folder, by its id: never a path. Raises: RunNotFound."""
        if not run_id or Path(run_id).name != run_id or run_id.startswith("."):
            raise RunNotFound(f"There is no run {run_id!r}.", fix="Choose one of the list.")
        return open_run(self.root / run_id)

    def view(self, run_id: str, *, log_y: bool = False) -> RunView:
        if not run_id:
            return RunView(
                status='<p class="aside">No run yet. Launch one from the Plan tab, or with longfit train.</p>'
            )
        try:
            paths = self.open(run_id)
            look = snapshot(paths)
        except LongfitError as error:
            return RunView(status=error_html(error, word="NO RUN"))
        postmortem = paths.read_json(paths.postmortem) if look.state.status == "failed" else {}
        with self.readers.opened(paths) as reader:
            state = reader.state
            return RunView(
                status=run_html.status_html(status_view(state, now=time.time())),
                word=state.status,
                progress=run_html.progress_html(state, reader.loss),
                rates=run_html.rates_html(reader.loss, look.plan),
                loss=run_html.loss_html(reader.loss, logging_steps=look.config.logging_steps, log_y=log_y),
                memory=run_html.memory_html(reader.memory, look.plan),
                events=run_html.events_html(reader.events),
                log=run_html.log_html(reader.log),
                failure=run_html.failure_html(state, postmortem),
                command=f"longfit attach {run_id}",
                version=reader.version,
                stop_words="Stop now" if state.status == "stopping" else "Save and stop",
                can_stop=look.is_live,
                can_kill=look.is_live or state.status == "lost",
                can_resume=state.status in ("stopped", "failed", "lost"),
                resume_words=resume_words(state),
            )

    def stop(self, run_id: str) -> str:
        """Save and stop; asked again, the supervisor skips a rung. Raises: LongfitError."""
        control.stop(self.open(run_id), "save")
        return "Asked to save and stop."

    def kill(self, run_id: str) -> str:
        """End every process of the run at once; of a lost run, what is left of it. Raises: LongfitError."""
        paths = self.open(run_id)
        if snapshot(paths).state.status == "lost":
            pids = control.kill_leftovers(paths)
            return f"Ended {len(pids)} process(es) that were left." if pids else "No process of it is left."
        control.stop(paths, "kill")
        return "Asked to end every process of the run."

    def resume(self, run_id: str) -> str:
        """A new attempt in the same directory. Raises: LongfitError."""
        launch.resume(self.open(run_id))
        return "Resumed."


def resume_words(state: RunState) -> str:
    match state.status:
        case "stopped" | "failed" | "lost" if state.last_checkpoint:
            return f"Resume continues from {state.last_checkpoint}."
        case "stopped" | "failed" | "lost":
            return "Resume starts over: no checkpoint was saved."
        case "done":
            return "Nothing to resume: the run is done."
    return "Resume is for runs that have ended."
