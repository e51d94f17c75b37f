"""Tabs that stand in for panes side by side where the terminal is narrow. Used by every screen with several panes."""

from __future__ import annotations

from textual.widgets import Tab, Tabs


class PaneTabs(Tabs):
    """Shown only on a ``-narrow`` screen (see the style sheet): the screen gets the class ``-pane-<id>``."""

    def __init__(self, panes: tuple[tuple[str, str], ...]) -> None:
        super().__init__(*(Tab(label, id=f"tab-{pane}") for pane, label in panes))
        self._panes = tuple(pane for pane, _ in panes)

    def on_tabs_tab_activated(self, message: Tabs.TabActivated) -> None:
        message.stop()
        if message.tab is None or message.tab.id is None:
            return
        active = message.tab.id.removeprefix("tab-")
        for pane in self._panes:
            self.screen.set_class(pane == active, f"-pane-{pane}")
