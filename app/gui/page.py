"""The whole page: head, Plan and Run tabs, foot, and what connects them. Built by app/cli/web.py through server.py."""

from __future__ import annotations

import socket
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from app.gui.launcher import Launcher
from app.gui.messages import shown_to_the_user
from app.gui.plan_form import form_from_inputs
from app.gui.plan_tab import build_plan_tab
from app.gui.run_actions import RunActions
from app.gui.run_tab import build_run_tab

_REPLACE_ADDRESS = "(query) => { if (query) window.history.replaceState(null, '', query); }"
_PROGRESS = gr.Progress()
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


def build_page(*, runs_root: Path, needs_token: bool) -> gr.Blocks:
    """``runs_root`` is where runs are looked for and created."""
    actions, launcher = RunActions(runs_root), Launcher(runs_root)
    with gr.Blocks(title="longfit", analytics_enabled=False) as page:
        gr.HTML(_head(needs_token), elem_id="head")
        with gr.Tabs(selected="plan", elem_id="tabs") as tabs:
            with gr.Tab("Plan", id="plan") as plan_pane:
                plan = build_plan_tab()
            with gr.Tab("Run", id="run") as run_pane:
                run = build_run_tab(actions)
        gr.HTML(_foot(runs_root), elem_id="foot")

        def restore_run(request: gr.Request) -> list[Any]:
            """The run of the address, else the newest; the Run tab is in front when the address names a run."""
            wanted = str(request.query_params.get("run", ""))
            return [run.list_runs(actions.first_choice(wanted)), gr.Tabs(selected="run" if wanted else "plan")]

        def launch(*inputs: Any, progress: gr.Progress = _PROGRESS) -> str:
            def tell(num_rows: int, file: str, share: float | None) -> None:
                progress(share, desc=f"Preparing data: {num_rows:,} rows of {file}")

            progress(None, desc="Preparing data")
            with shown_to_the_user():
                return launcher.launch(form_from_inputs(*inputs), on_progress=tell)

        launched = gr.Textbox(visible="hidden", elem_id="launched")
        # no limit: a second launch is refused by the launcher at once and does not wait for its turn
        started = plan.launch.click(
            launch, plan.form.inputs, launched, show_progress="full", show_progress_on=plan.refusal,
            concurrency_limit=None, api_name="launch",
        ).success(
            lambda run_id: [run.list_runs(run_id), gr.Tabs(selected="run"), f"?run={run_id}"], launched,
            [run.run, tabs, run.address], **_QUIET,
        ).then(None, run.address, None, js=_REPLACE_ADDRESS, **_QUIET)  # fmt: skip
        run.show_after(started)
        plan.restore_on(page)
        run.show_after(page.load(restore_run, None, [run.run, tabs], **_QUIET))
        # The address names what is in front, so that reload and bookmarks lead back to it.
        plan_pane.select(None, plan.address, None, js=_REPLACE_ADDRESS, **_QUIET)
        run_pane.select(None, run.address, None, js=_REPLACE_ADDRESS, **_QUIET)
        run.run.input(lambda run_id: f"?run={run_id}", run.run, run.address, **_QUIET).then(
            None, run.address, None, js=_REPLACE_ADDRESS, **_QUIET
        )
    return page


def _head(needs_token: bool) -> str:
    access = "token needed" if needs_token else "this machine only"
    return (
        f"<header><strong>longfit</strong> <span>{escape(socket.gethostname())}</span> "
        f'<span class="aside">{access}; data paths below {escape(str(Path.cwd()))}</span></header>'
    )


def _foot(runs_root: Path) -> str:
    return (
        f'<footer class="aside">Safe to reload or close: runs live in {escape(str(runs_root.resolve()))} '
        "and go on without this page.</footer>"
    )
