"""The whole page: head, Plan and Run tabs, foot, and what connects them. Built by app/cli/web.py through server.py."""

from __future__ import annotations

import gradio as gr

from app.gui.plan_tab import build_plan_tab


def build_page() -> gr.Blocks:
    with gr.Blocks(title="longfit", analytics_enabled=False) as page:
        with gr.Tabs(selected="plan"), gr.Tab("Plan", id="plan"):
            plan = build_plan_tab()
        plan.restore_on(page)
    return page
