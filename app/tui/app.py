"""The terminal interface: screens, themes, keys that work everywhere. Started by app/tui/start.py."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.text import Text
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.filter import LineFilter, Monochrome
from textual.markup import escape
from textual.notifications import SeverityLevel
from textual.screen import Screen

from app.services.draft import Draft
from app.services.terminal import prefers_ascii
from app.tui.screens.dialogs import TextScreen
from app.tui.services import Services
from app.tui.themes import COLOURLESS_THEME, DEFAULT_THEME, THEMES
from app.tui.widgets.plain import visible_lines
from app.views.parts import VERDICT_MEANING, VERDICT_WORDS
from app.views.text import legend_text
from planner.errors import ConfigError, LongfitError
from planner.types import Preset

if TYPE_CHECKING:
    from app.tui.screens.plan import PlanScreen
    from app.tui.screens.run import RunScreen

_GREY = Monochrome()


class LongfitApp(App[None]):
    """``preset`` opens the Plan screen on it, ``run_dir`` the Run screen. Leaving never stops a run."""

    CSS_PATH = "longfit.tcss"
    TITLE = "longfit"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS: ClassVar = [(0, "-narrow"), (72, "-normal"), (110, "-wide")]
    VERTICAL_BREAKPOINTS: ClassVar = [(0, "-tiny"), (12, "-short"), (30, "-tall")]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "show_screen('plan')", "plan", show=False),
        Binding("2", "show_screen('run')", "run", show=False),
        Binding("3", "show_screen('runs')", "runs", show=False),
        Binding("4", "show_screen('presets')", "presets", show=False),
        Binding("5", "show_screen('data')", "data", show=False),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q,ctrl+q", "quit", "quit", key_display="q"),
    ]

    def __init__(
        self,
        services: Services | None = None,
        *,
        preset: Preset | None = None,
        run_dir: Path | None = None,
        exit_when_final: bool = False,
        ascii_only: bool | None = None,
        theme: str | None = None,
    ) -> None:
        super().__init__()
        self.services = services or Services()
        self.preset = preset
        self.run_dir = run_dir
        self.exit_when_final = exit_when_final
        self.ascii_only = prefers_ascii() if ascii_only is None else ascii_only
        for item in THEMES:
            self.register_theme(item)
        self.animation_level = "none"
        self.theme = _known_theme(theme or os.environ.get("LONGFIT_THEME") or DEFAULT_THEME)
        self._screens: dict[str, Screen[Any]] = {}

    def notify(
        self, message: str, *, title: str = "", severity: SeverityLevel = "information", timeout: float | None = None,
        markup: bool = False,
    ) -> None:  # fmt: skip
        """As Textual's, but what is said may quote data: no markup, and control characters are made visible."""
        super().notify(visible_lines(message), title=title, severity=severity, timeout=timeout, markup=False)

    def on_mount(self) -> None:
        self.set_class(self.ascii_only, "-ascii")
        self.action_show_screen("run" if self.run_dir is not None else "plan")

    def action_show_screen(self, name: str) -> None:
        """Switch to a screen by its name; it keeps its state while another one is shown."""
        if name == "run" and self.run_dir is None:
            newest = next(iter(self.services.runs().runs), None)
            if newest is None:
                self.notify("There is no run yet: L on the Plan screen launches one.", markup=False)
                return
            self.open_run(newest.paths.path)
            return
        self.switch_to(name)

    def switch_to(self, name: str) -> None:
        if name not in self._screens:
            self._screens[name] = self._make_screen(name)
            self.install_screen(self._screens[name], name)
        if self.screen is not self._screens[name]:
            while len(self.screen_stack) > 1:
                self.pop_screen()
            self.push_screen(name)

    def _make_screen(self, name: str) -> Screen[Any]:
        """A screen is imported when it is first shown: the first one must not wait for all others."""
        if name == "plan":
            from app.tui.screens.plan import PlanScreen

            return PlanScreen(self.services, self.preset or self._first_preset())
        if name == "run" and self.run_dir is not None:
            from app.tui.screens.run import RunScreen

            return RunScreen(self.services, self.run_dir, exit_when_final=self.exit_when_final)
        if name == "runs":
            from app.tui.screens.runs import RunsScreen

            return RunsScreen(self.services)
        if name == "data":
            from app.tui.screens.data import DataScreen

            return DataScreen(self.services)
        from app.tui.screens.presets import PresetsScreen

        return PresetsScreen(self.services)

    @property
    def draft(self) -> Draft:
        """What the Plan screen has at hand; other screens compare with it and report on it."""
        plan = cast("PlanScreen | None", self._screens.get("plan"))
        return plan.draft if plan is not None else Draft.of(self.preset or self._first_preset())

    def open_preset(self, preset: Preset) -> None:
        """Load a preset into the Plan screen; what was edited there can be had back with undo."""
        self.open_draft(Draft.of(preset))

    def open_draft(self, draft: Draft) -> None:
        self.switch_to("plan")
        plan = cast("PlanScreen", self._screens["plan"])
        self.call_after_refresh(plan.load, draft)

    def open_run(self, run_dir: Path) -> None:
        """Show a run on the Run screen, in place of the one that was there."""
        if run_dir != self.run_dir and "run" in self._screens:
            old = self._screens.pop("run")
            if self.screen is old:
                self.pop_screen()
            self.uninstall_screen(old)
        self.run_dir = run_dir
        self.switch_to("run")

    def _first_preset(self) -> Preset:
        """Of the person's own that can be read, else of those that ship; the Presets screen says what cannot be."""
        names = self.services.preset_names()
        for name in names:
            with suppress(LongfitError):
                preset = self.services.load_preset(name)
                if preset.origin != "built-in":
                    return preset
        return self.services.load_preset(names[0])

    async def action_quit(self) -> None:
        """Leave. A run that goes on is named, for it does not need this screen."""
        run = cast("RunScreen | None", self._screens.get("run"))
        words = run.farewell if run is not None else ""
        self.exit(message=Text(words) if words else None)

    def action_help(self) -> None:
        of_focus = getattr(self.screen, "focus_help", "")
        text = help_text(self.screen, ascii_only=self.ascii_only)
        self.push_screen(TextScreen("Help", f"{of_focus}\n\n{text}" if of_focus else text))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Every key of the screen is in the palette too: letters do nothing while a text field has the focus."""
        for binding in _bindings(screen):
            name = binding.tooltip or binding.description
            yield SystemCommand(name, f"key {self.get_key_display(binding)}", _runner(self, screen, binding.action))
        for preset in self.services.presets():
            # the palette reads its lines as markup
            title, words = (escape(visible_lines(text)) for text in (f"plan {preset.name}", preset.description))
            yield SystemCommand(title, words or "preset", partial(self.open_preset, preset))
        for theme in THEMES:
            yield SystemCommand(f"theme {theme.name}", "colours", lambda name=theme.name: setattr(self, "theme", name))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """In the theme without colour, what widgets colour by themselves is grey too, as under NO_COLOR."""
        filters = super().get_line_filters()
        return [*filters, _GREY] if self.theme == COLOURLESS_THEME else filters


def _known_theme(name: str) -> str:
    """Raises: ConfigError for a theme that there is not, as LONGFIT_THEME may name one."""
    names = [theme.name for theme in THEMES]
    if name not in names:
        words = f"It can be {', '.join(names)}."
        raise ConfigError(f"There is no theme {name!r}.", why=words, fix="Mend LONGFIT_THEME.")
    return name


def _runner(app: App[Any], screen: Screen[Any], action: str) -> Any:
    return lambda: app.run_worker(app.run_action(action, default_namespace=screen))


def _bindings(screen: Screen[Any]) -> list[Binding]:
    found: dict[str, Binding] = {}
    for source in (type(screen), type(screen.app)):
        for binding in source.BINDINGS:
            if isinstance(binding, Binding):
                found.setdefault(binding.action, binding)
    return list(found.values())


def help_text(screen: Screen[Any], *, ascii_only: bool) -> str:
    verdicts = "\n".join(f"{VERDICT_WORDS[verdict]}: {meaning}" for verdict, meaning in VERDICT_MEANING.items())
    keys = "\n".join(
        f"{screen.app.get_key_display(binding).split()[0]:<4} {binding.tooltip or binding.description}"  # "[ ]" is two
        for binding in _bindings(screen)
    )
    return (
        f"{keys}\nTab moves between fields, Ctrl+P lists every command.\n"
        "Leaving never stops a run: `longfit attach` shows it again.\n\n"
        f"What the patterns mean\n{legend_text(ascii_only=ascii_only)}\n\nWhat the verdicts mean\n{verdicts}"
    )
