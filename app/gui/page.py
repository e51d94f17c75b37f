"""The whole page: head, the tabs, foot, and what connects them. Built by app/cli/web.py through server.py."""

from __future__ import annotations

import socket
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import gradio as gr

from app.gui.data_actions import DataActions
from app.gui.data_tab import DataTab, build_data_tab
from app.gui.launcher import Launcher
from app.gui.messages import shown_to_the_user
from app.gui.plan_actions import load_form
from app.gui.plan_form import form_from_inputs, inputs_from_form
from app.gui.plan_tab import PlanTab, build_plan_tab
from app.gui.presets_tab import PresetsTab, build_presets_tab
from app.gui.run_actions import RunActions
from app.gui.run_tab import RunTab, build_run_tab
from app.gui.runs_actions import RunsActions, address_of, compared_in
from app.gui.runs_tab import RunsTab, build_runs_tab
from app.services.presets import preset_names

_REPLACE_ADDRESS = "(query) => { if (query) window.history.replaceState(null, '', query); }"
# what the Data tab reads may become known only after another tab came to front
_FOLLOW_DATA = """(query) => {
    if (query && new URLSearchParams(location.search).get('tab') === 'data')
        window.history.replaceState(null, '', query);
}"""
_PROGRESS = gr.Progress()
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_TABS = ("plan", "run", "runs", "presets", "data")


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
            with gr.Tab("Runs", id="runs") as runs_pane:
                runs = build_runs_tab(RunsActions(actions))
            with gr.Tab("Presets", id="presets") as presets_pane:
                presets = build_presets_tab()
            with gr.Tab("Data", id="data") as data_pane:
                data = build_data_tab(DataActions(), plan.form)
        gr.HTML(_foot(runs_root), elem_id="foot")

        def restore_front(request: gr.Request) -> list[Any]:
            """The tab that the address names in front; its run, else the newest; what is compared."""
            wanted = str(request.query_params.get("run", ""))
            tab = str(request.query_params.get("tab", ""))
            front = "run" if wanted else tab if tab in _TABS else "plan"
            return [
                run.list_runs(actions.first_choice(wanted)), gr.Tabs(selected=front),
                address_of(compared_in(str(request.query_params))), gr.Timer(active=front == "runs"),
            ]  # fmt: skip

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
        plan_restored = plan.restore_on(page)
        restored = page.load(restore_front, None, [run.run, tabs, runs.address, runs.timer], **_QUIET)
        run.show_after(restored)
        runs.show_after(restored)
        presets.restore_on(page)
        _wire_runs(runs, run, tabs)
        _wire_presets(presets, plan, tabs)
        data.fill_after(plan_restored)
        _wire_data(data, plan, data_pane)
        # The address names what is in front, so that reload and bookmarks lead back to it.
        for pane, address in (
            (plan_pane, plan.address), (run_pane, run.address), (runs_pane, runs.address),
            (presets_pane, presets.address),
        ):  # fmt: skip
            pane.select(None, address, None, js=_REPLACE_ADDRESS, **_QUIET)
        for pane in (plan_pane, run_pane, runs_pane, presets_pane, data_pane):
            is_front = pane is runs_pane
            pane.select(lambda is_front=is_front: gr.Timer(active=is_front), None, runs.timer, **_QUIET)
        runs.show_after(runs_pane.select(lambda: "", None, runs.message, **_QUIET))
        presets.list_after(presets_pane.select(lambda: "", None, presets.message, **_QUIET))
        run.run.input(lambda run_id: f"?run={run_id}", run.run, run.address, **_QUIET).then(
            None, run.address, None, js=_REPLACE_ADDRESS, **_QUIET
        )
    return page


def _wire_runs(runs: RunsTab, run: RunTab, tabs: gr.Tabs) -> None:
    """A name that was clicked comes to front on the Run tab; what else was clicked may have changed the address."""

    def lead(opened: str, address: str) -> list[Any]:
        if not opened:
            return [gr.skip(), gr.skip(), gr.skip(), gr.skip(), address]
        own = f"?run={opened}"
        return [run.list_runs(opened), gr.Tabs(selected="run"), own, gr.Timer(active=False), own]

    front = gr.Textbox(visible="hidden", elem_id="front-address")
    led = runs.wire().then(
        lead, [runs.opened, runs.address], [run.run, tabs, run.address, runs.timer, front], **_QUIET
    )  # fmt: skip
    run.show_after(led.then(None, front, None, js=_REPLACE_ADDRESS, **_QUIET))


def _wire_presets(presets: PresetsTab, plan: PlanTab, tabs: gr.Tabs) -> None:
    """Open in Plan loads the chosen preset there; what is chosen stands in the address."""

    def open_preset(name: str) -> list[Any]:
        with shown_to_the_user():
            _, *others = inputs_from_form(load_form(name or ""))
        chosen = gr.update(choices=list(preset_names()), value=name)
        return [gr.Tabs(selected="plan"), "?" + urlencode({"preset": name}), chosen, *others]

    for event in presets.wire(plan.form):
        event.then(None, presets.address, None, js=_REPLACE_ADDRESS, **_QUIET)
    front = gr.Textbox(visible="hidden", elem_id="opened-address")
    opened = presets.open.click(open_preset, presets.chosen, [tabs, front, *plan.form.inputs], **_QUIET)
    plan.plan_after(opened.success(None, front, None, js=_REPLACE_ADDRESS, **_QUIET))


def _wire_data(data: DataTab, plan: PlanTab, pane: gr.Tab) -> None:
    """Its inputs are the plan's: each follows the other. What is read stands in the address."""
    edited, begun = data.wire()
    plan.plan_after(edited)
    filled = data.fill_after(pane.select(None, data.address, None, js=_REPLACE_ADDRESS, **_QUIET))
    for event in (edited, begun, filled):
        event.then(None, data.address, None, js=_FOLLOW_DATA, **_QUIET)


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
