"""From the form to a running run, one at a time. Used by plan_tab.py's Launch button through page.py."""

from __future__ import annotations

import threading
from pathlib import Path

from app.gui.plan_actions import Form, launch_refusal, resolve_form
from app.services.launch import device_of, launch_planned
from app.services.planning import Planned, plan_resolved
from app.services.prepare_data import Progress
from app.services.runs import list_runs
from core.run.process import boot_id
from planner.errors import ConfigError
from planner.types import Plan


class Launcher:
    """Starts runs below ``runs_root``. The lock keeps two browsers, or two clicks, from starting at the same moment."""

    def __init__(self, runs_root: Path) -> None:
        self.runs_root = runs_root
        self._lock = threading.Lock()

    def launch(self, form: Form, *, on_progress: Progress | None = None) -> str:
        """Prepare the data and start; the id of the run.

        Raises: LongfitError: what the form has wrong, what does not fit, data that cannot be used, or GPUs in use.
        """
        if not self._lock.acquire(blocking=False):
            raise ConfigError("Another launch from this page is under way.", fix="Look at the Run tab in a moment.")
        try:
            resolved, draft = resolve_form(form)
            plan = plan_resolved(resolved)
            if refusal := launch_refusal(plan):
                raise ConfigError(refusal)
            self._refuse_busy_gpus(plan)
            planned = Planned(preset=draft.preset, resolved=resolved, plan=plan)
            return launch_planned(planned, runs_root=self.runs_root, on_progress=on_progress).id
        finally:
            self._lock.release()

    def _refuse_busy_gpus(self, plan: Plan) -> None:
        """A run that is still loading does not hold its memory yet, so free memory alone would not tell."""
        if plan.cluster.gpu.kind != "cuda":
            return
        for run in list_runs(self.runs_root).runs:
            supervisor = run.state.supervisor
            is_here = supervisor is not None and supervisor.boot_id == boot_id()
            if run.is_live and is_here and device_of(run.plan) == "cuda":
                raise ConfigError(
                    f"The run {run.id} is using the GPUs of this machine.",
                    why="Two runs would share memory that each was planned to have alone.",
                    fix="Stop it on the Run tab, or wait until it is done.",
                )
