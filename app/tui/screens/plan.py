"""The Plan screen: edit a preset, see at once what each GPU would hold, take a better combination, launch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import DataTable, Footer

from app.services.draft import AS_PRESET, Draft
from app.tui.fields import field_of_error, field_text
from app.tui.screens.dialogs import PickerScreen
from app.tui.search import LongestFound, Recommended, Search
from app.tui.services import Services
from app.tui.widgets.alternatives import AlternativesTable
from app.tui.widgets.fields import FieldChanged, PickerRequested
from app.tui.widgets.footprint_bar import FootprintBars
from app.tui.widgets.narrow import PaneTabs
from app.tui.widgets.plain import Plain
from app.tui.widgets.plan_panel import PlanPanel
from app.tui.widgets.setup_form import SetupForm
from app.tui.widgets.top_bar import TopBar
from app.views.parts import changes_words
from app.views.plan_view import cluster_words, command_text, issue_words, speed_words
from planner.errors import LongfitError
from planner.goals import GOALS, Goal
from planner.types import Plan, Preset

if TYPE_CHECKING:
    from app.tui.screens.launching import Launched


class PlanScreen(Screen[None]):
    """Holds the draft and its plan. The plan is computed inline on every edit, the search in a thread.

    Dialogs are imported when they are opened: the first screen must not wait for them.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "scale_length(0.5)", "length", key_display="[ ]", tooltip="half the length"),
        Binding(
            "right_square_bracket",
            "scale_length(2)",
            "double",
            key_display="]",
            show=False,
            tooltip="double the length",
        ),
        Binding("left_curly_bracket", "add_length(-1024)", "length - 1024", key_display="{", show=False),
        Binding("right_curly_bracket", "add_length(1024)", "length + 1024", key_display="}", show=False),
        Binding("a", "apply", "apply", tooltip="take the selected recommendation over"),
        Binding("m", "longest", "max", tooltip="set the longest length that fits"),
        Binding("e", "explain", "why", tooltip="explain the selected number, recommendation or field"),
        Binding("E", "explain_any", "any number", show=False, tooltip="choose any number and see where it comes from"),
        Binding("t", "ladder", "steps", show=False, tooltip="step by step: what each optimization changes"),
        Binding("w", "pin", "pin", show=False, tooltip="pin this plan and compare what follows with it"),
        Binding("f", "goal", "goal", show=False, tooltip="recommend the fastest, the longest or the smallest first"),
        Binding("u", "undo", "undo", show=False, tooltip="take the last edit back"),
        Binding("p", "paste", "paste", tooltip="paste a command or configuration of another tool"),
        Binding("c", "copy_command", "copy", tooltip="copy the command, and write it to a file"),
        Binding("s", "save", "save", show=False, tooltip="save as a preset"),
        Binding("R", "rehearse", "rehearse", tooltip="three steps of the true shape on this machine, measured"),
        Binding("L,ctrl+l", "launch", "launch", key_display="L", tooltip="launch it on this machine"),
        Binding("escape", "leave_field", "leave the field", show=False),
    ]
    PANES = (("setup", "Setup"), ("plan-panel", "Memory"), ("alternatives", "Recommended"))

    def __init__(self, services: Services, preset: Preset) -> None:
        super().__init__(classes=f"-pane-{self.PANES[0][0]}")  # the tabs would say so later, which styles all anew
        self.services = services
        self.draft = Draft.of(preset)
        self.history: list[Draft] = []
        self.plan: Plan | None = None
        self.resolved: Any = None
        self.pinned: Plan | None = None
        self.goal: Goal = GOALS[0]
        self.longest: int | None = None
        self._search = Search(self, services)
        self._problem = ""  # of the goal

    def compose(self) -> ComposeResult:
        yield TopBar("plan")
        yield PaneTabs(self.PANES)
        with Vertical(id="plan-body"):
            with Horizontal(id="plan-top"):
                yield SetupForm(
                    presets=self.services.preset_names(),
                    models=self.services.model_names(),
                    gpus=self.services.gpu_names(),
                )
                yield PlanPanel()
            yield AlternativesTable()
        yield Plain(id="findings")
        yield Plain(id="command")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(SetupForm).show(self.draft)
        self.recompute()
        self.query_one(AlternativesTable).focus()

    # --- editing -------------------------------------------------------------------------------------------------

    def on_field_changed(self, message: FieldChanged) -> None:
        form = self.query_one(SetupForm)
        spec = form.spec(message.key)
        try:
            draft = self._edited(message.key, spec.parse(message.text))
        except LongfitError as error:
            form.complain({message.key: str(error)})
            self.query_one(PlanPanel).refuse(f"{spec.label}: {error!s}")
            return
        self.change(draft, edited=message.key)

    def _edited(self, key: str, value: Any) -> Draft:
        match key:
            case "preset":
                return Draft.of(self.services.load_preset(value))
            case "gpu":
                return replace(self.draft, gpu=value, count=0 if value == AS_PRESET else self.draft.count)
            case "count":
                return replace(self.draft, count=int(value or 1))
        return self.draft.set(key, value)

    def load(self, draft: Draft) -> None:
        """Another preset in place of what is there; how much that changes is said."""
        from app.views.preset_diff import diff_rows

        differences = len(diff_rows(self.draft.as_preset("before"), draft.as_preset("after")))
        self.change(draft)
        keys = "1 key differs" if differences == 1 else f"{differences} keys differ"
        self.notify(f"Loaded {draft.preset.name}: {keys} from what was here; u takes it back.")

    def change(self, draft: Draft, *, edited: str = "") -> None:
        """Make ``draft`` the one at hand and plan it. ``edited`` is the field being typed in, if any."""
        if draft == self.draft:
            self.recompute(edited=edited)
            return
        self.history.append(self.draft)
        self.draft = draft
        self.query_one(SetupForm).show(draft, keep=edited)
        self.recompute(edited=edited)

    def recompute(self, *, edited: str = "") -> None:
        """Plan the draft now; what cannot be planned is said beside its field and the last plan stays, marked."""
        form, panel = self.query_one(SetupForm), self.query_one(PlanPanel)
        try:
            resolved = self.services.resolve(self.draft.preset, self.draft.overrides, self.draft.hardware)
            plan = self.services.plan(resolved)
        except LongfitError as error:
            key = edited or field_of_error(error, form.specs) or ""
            form.complain({key: str(error)})
            panel.refuse(str(error))
            self._show_command()
            return
        self.resolved, self.plan, self.longest, self._problem = resolved, plan, None, ""
        form.complain(_complaints(plan, form))
        panel.show(plan, self.pinned)
        self.query_one(TopBar).show(f"{self.draft.preset.name}  {cluster_words(plan)}")
        self.query_one(AlternativesTable).show_current(plan)
        self._show_findings()
        self._show_command()
        self._search.want(plan, resolved, self.goal)

    # --- searching -----------------------------------------------------------------------------------------------

    def on_recommended(self, message: Recommended) -> None:
        if self._search.is_of_now(message):
            self._problem = message.problem
            table = self.query_one(AlternativesTable)
            table.show_found(message.wanted.plan, message.found)
            table.border_title = f"Recommended, {self.goal} first (f changes)"
            self._show_findings()

    def on_longest_found(self, message: LongestFound) -> None:
        if self._search.is_of_now(message):
            self.longest = message.length
            self._show_findings()
        self._search.ended(message)

    def _show_findings(self) -> None:
        if self.plan is None:
            return
        match self.longest:
            case None:
                words = "searching"
            case 0:
                words = "no length fits like this"
            case longest:
                words = f"longest that fits: {longest:,} (m sets it)"
        selected = self.query_one(AlternativesTable).selected
        reason = f"{selected.rank}: {selected.why}" if selected is not None else speed_words(self.plan)
        self.query_one("#findings", Plain).show_line(self._problem or f"{words}   {reason}")

    def on_data_table_row_highlighted(self, message: DataTable.RowHighlighted) -> None:
        if message.data_table.id == "alternatives":
            self._show_findings()

    def action_leave_field(self) -> None:
        """Out of the form, so that every key is a command again."""
        self.query_one(AlternativesTable).focus()

    def action_goal(self) -> None:
        self.goal = GOALS[(GOALS.index(self.goal) + 1) % len(GOALS)]
        if self.plan is not None:
            self._search.want(self.plan, self.resolved, self.goal)

    # --- actions -------------------------------------------------------------------------------------------------

    def action_scale_length(self, factor: float) -> None:
        self.change(self.draft.set("max_length", max(8, int(int(self.draft.get("max_length", 8)) * factor))))

    def action_add_length(self, tokens: int) -> None:
        self.change(self.draft.set("max_length", max(8, int(self.draft.get("max_length", 8)) + tokens)))

    def action_longest(self) -> None:
        if self.longest:
            self.change(self.draft.set("max_length", self.longest))
        elif self.longest == 0:
            self.notify("No length fits with these settings: apply a recommendation first.", markup=False)

    def action_apply(self) -> None:
        row = self.query_one(AlternativesTable).selected
        if row is None and self.query_one(AlternativesTable).found:
            row = self.query_one(AlternativesTable).found[0]
        if row is None:
            self.notify("There is nothing to apply yet.", markup=False)
            return
        self._apply(row.changes)

    def _apply(self, changes: Iterable[tuple[str, Any]] | None) -> None:
        """Of a recommendation or of a step of the ladder; None: it was left."""
        if changes:
            self.change(self.draft.apply(changes))
            self.notify(f"Applied: {changes_words(changes)}", markup=False)

    def action_undo(self) -> None:
        if self.history:
            self.draft = self.history.pop()
            self.query_one(SetupForm).show(self.draft)
            self.recompute()

    def action_pin(self) -> None:
        """Keep the plan of now as a ghost bar to compare with; again takes it away."""
        self.pinned = None if self.pinned is not None else self.plan
        if self.plan is not None:
            self.query_one(PlanPanel).show(self.plan, self.pinned)

    def action_explain(self) -> None:
        """The formula behind the selected part, the reason of an alternative, or the help of a field."""
        from app.tui.screens.explaining import explain_focused

        explain_focused(self, self.plan)

    def action_explain_any(self) -> None:
        from app.tui.screens.explaining import pick_number

        if self.plan is not None:
            pick_number(self, self.plan)

    @property
    def focus_help(self) -> str:
        """Of the field that has the focus; ``?`` shows it above the keys."""
        form = self.query_one(SetupForm)
        key = form.focused_key()
        return "" if key is None else form.help(key)

    def on_data_table_row_selected(self, message: DataTable.RowSelected) -> None:
        if message.data_table.id == "parts":
            self.action_explain()
        elif self.query_one(AlternativesTable).selected is not None:
            self.action_apply()

    def on_footprint_bars_opened(self, message: FootprintBars.Opened) -> None:
        from app.tui.screens.explaining import explain

        if self.plan is not None:
            explain(self, self.plan, "used")

    def on_picker_requested(self, message: PickerRequested) -> None:
        form = self.query_one(SetupForm)
        spec = form.spec(message.key)

        def take(choice: str | None) -> None:
            if choice is not None:
                self.on_field_changed(FieldChanged(message.key, choice))

        current = field_text(spec, self.draft)
        self.app.push_screen(PickerScreen(spec.label, form.choices(spec.key), current, free_text=spec.free_text), take)

    # --- command, preset, launch ---------------------------------------------------------------------------------

    @property
    def command(self) -> str:
        """The command line that does what the screen shows: train where it can be launched, plan where it cannot."""
        is_here = self.resolved is None or self.resolved.cluster.source == "detected"
        return command_text(
            self.draft.argument,
            self.draft.overrides,
            verb="train" if is_here else "plan",
            hardware=self.draft.hardware,
        )

    def _show_command(self) -> None:
        self.query_one("#command", Plain).show_line(f"$ {self.command}")

    def action_copy_command(self) -> None:
        """To the clipboard by OSC 52, which no terminal acknowledges; so it is written to a file as well."""
        self.app.copy_to_clipboard(self.command)
        path = self.services.write_command(self.command)
        self.notify(f"Copied, and written to {path}", markup=False)

    def action_save(self) -> None:
        from app.tui.screens.saving import ask_and_save

        preset = self.draft.preset
        ask_and_save(
            self, self.services, preset, self.draft.overrides, proposal=f"{preset.name}-mine", then=lambda saved: None
        )

    def action_paste(self) -> None:
        from app.tui.screens.paste import PasteScreen

        def load(preset: Preset | None) -> None:
            if preset is not None:
                self.load(Draft.of(preset))

        self.app.push_screen(PasteScreen(self.services), load)

    def action_ladder(self) -> None:
        from app.tui.screens.ladder import LadderScreen

        if self.plan is not None:
            self.app.push_screen(LadderScreen(self.services, self.resolved), self._apply)

    def action_rehearse(self) -> None:
        from app.tui.screens.rehearsal import start_rehearsal

        if self._is_planned("rehearsed"):
            start_rehearsal(self, self.services, self.draft)

    def action_launch(self) -> None:
        from app.tui.screens.launching import start_launch

        if self._is_planned("launched"):
            start_launch(self, self.services, self.draft)

    def _is_planned(self, what: str) -> bool:
        if self.plan is not None and not self.query_one(PlanPanel).has_class("-stale"):
            return True
        self.notify(f"This cannot be planned yet, so it cannot be {what}.", severity="error", markup=False)
        return False

    def on_launched(self, message: Launched) -> None:
        if message.run_dir is None:
            self.notify(message.problem, severity="error", timeout=12, markup=False)
        else:
            self.app.open_run(message.run_dir)  # type: ignore[attr-defined]


def _complaints(plan: Plan, form: SetupForm) -> dict[str, str]:
    """Errors of the plan beside the field that their suggestion, or their code, names."""
    complaints: dict[str, str] = {}
    keys = form.visible_keys
    for issue in plan.issues:
        if issue.severity == "error":
            named = [key for key, _ in issue.suggestion if key in keys]
            # a code such as length-beyond-model is not about which model
            named += [key for key in keys if key != "model" and key.replace("_", "-") in issue.code]
            complaints.setdefault(named[0] if named else "max_length", issue_words(issue))
    return complaints
