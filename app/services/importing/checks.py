"""What goes wrong after a paste, said before anything loads: model, missing keys, degrees, lengths, a noisy loss.

Called by imported.py, last. The plan refuses what cannot be; these findings say it in the words of the paste.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.services.importing.draft import Draft, default_of
from app.services.importing.finding import Finding, Kind
from app.services.importing.parallelism import leave_out_dropout
from planner.types import Issue, Preset

STEADY_ROWS = 16  # of an optimizer step: what ms-swift aims at when nobody says
# the planner would leave out head groups or tiles; the dropout is the smaller loss
_DROPOUT = ("fake-parallel-dropout", "tiled-mlp-dropout")
NOISY_ROWS = 8  # below this, single rows move the loss visibly


def check_draft(draft: Draft) -> None:
    _check_model(draft)
    _check_data(draft)
    _check_length(draft)
    _ask_planner(draft)
    _check_batch(draft)
    _check_evaluation(draft)
    _check_checkpoints(draft)


def _check_model(draft: Draft) -> None:
    name = draft.values.get("model")
    if not name:
        draft.tell(
            "impossible", (), what="No model is named.", fix="--set model=Qwen/Qwen2.5-7B-Instruct, for example."
        )
    elif draft.model is None:
        near = draft.facts.near_models(name)
        draft.tell(
            "unknown", (), what=f"The model {name} is not known here; it stays as written, and cannot be planned.",
            why="It is neither a folder, nor in the hub cache, nor in the catalog; or its family is not supported.",
            fix=f"Nearest: {', '.join(near)}. Or a folder with its config.json." if near else "",
        )  # fmt: skip


def _check_data(draft: Draft) -> None:
    if not draft.values.get("data.train"):
        draft.tell("impossible", (), what="No training data is named.", fix="--set data.train=[my.jsonl]")


def _check_length(draft: Draft) -> None:
    if not draft.values.get("max_length"):
        draft.tell("impossible", (), what="No length of a row is known.", fix="--set max_length=8192")


def _ask_planner(draft: Draft) -> None:
    """What the planner refuses: an optimization it proposes to leave out is left out, the rest is told."""
    if draft.model is None or not draft.values.get("max_length"):
        return
    issues: Sequence[Issue] = ()
    for _ in range(1 + len(draft.facts.registry)):  # each round leaves one optimization, or the dropout, out
        issues = draft.facts.objections(_plannable(draft))
        mendable = [issue for issue in issues if issue.severity == "error" and _concerns_optimizations(issue, draft)]
        others = [issue for issue in mendable if issue.code not in _DROPOUT]
        if others:
            _mend(draft, others[0])
        elif mendable:
            leave_out_dropout(draft)
        else:
            break
    for issue in issues:
        if issue.severity != "info":
            kind: Kind = "impossible" if issue.severity == "error" else "risk"
            draft.tell(kind, (), what=issue.what, why=issue.why, fix=issue.fix)


def _plannable(draft: Draft) -> Preset:
    """The draft with a stand-in for data that was not named: no file is read for a plan."""
    preset = draft.preset("imported", "")
    return replace(preset, values={**preset.values, "data": {"train": ["data.jsonl"], **preset.values["data"]}})


def _concerns_optimizations(issue: Issue, draft: Draft) -> bool:
    return bool(issue.suggestion) and all(key in draft.facts.registry for key, _ in issue.suggestion)


def _mend(draft: Draft, issue: Issue) -> None:
    """Do as the planner suggests, and let one finding stand for the flags that asked for it."""
    names = {key for key, _ in issue.suggestion}
    for name, value in issue.suggestion:
        draft.values = {key: kept for key, kept in draft.values.items() if key.partition(".")[0] != name}
        if value is not None:
            draft.values[name] = value
    flags: list[str] = []
    kept_keys: dict[str, object] = {}
    findings = []
    for finding in draft.findings:
        keys = dict(finding.keys)
        if finding.kind in ("translated", "implied", "default") and names & {key.partition(".")[0] for key in keys}:
            flags += finding.flags
            kept_keys |= {key: value for key, value in keys.items() if key.partition(".")[0] not in names}
        else:
            findings.append(finding)
    what = f"{issue.what} {' and '.join(sorted(names))} {'are' if len(names) > 1 else 'is'} left out."
    mended = any(value is not None for _, value in issue.suggestion)
    draft.findings = [
        *findings,
        Finding(
            kind="impossible", flags=tuple(flags), keys=(*issue.suggestion, *kept_keys.items()),
            what=issue.what if mended else what, why=issue.why, fix=issue.fix,
        ),
    ]  # fmt: skip


def _check_batch(draft: Draft) -> None:
    """Sequence parallelism makes a step of fewer rows: the ranks of a group read the same one."""
    values = draft.values
    degree = int(values.get("sequence_parallel", 0)) or int(values.get("ulysses", 1)) * int(values.get("ring", 1))
    replicas = max(1, draft.num_gpus // max(1, degree))
    batch = int(values.get("per_device_train_batch_size", 1))
    accumulation = int(values.get("gradient_accumulation_steps", 1))
    rows = batch * accumulation * replicas
    if rows >= NOISY_ROWS or values.get("packing"):
        return
    shared = f", because {degree} GPUs share a row" if degree > 1 else ""
    wanted = -(-STEADY_ROWS // (batch * replicas))
    draft.tell(
        "risk", (), what=f"An optimizer step sees {rows} row{'s' if rows > 1 else ''}: the loss will be noisy.",
        why=f"{batch} a micro-batch x {accumulation} accumulated x {replicas} data-parallel{shared}.",
        fix=f"--set gradient_accumulation_steps={wanted} makes it {wanted * batch * replicas}.",
    )  # fmt: skip


def _check_evaluation(draft: Draft) -> None:
    values = draft.values
    if values.get("eval_steps") and not values.get("data.eval") and not values.get("data.eval_fraction"):
        draft.tell(
            "risk", (), what=f"eval_steps is {values['eval_steps']}, and no held-out data is named.",
            why="Nothing would be evaluated.",
            fix="--set data.eval_fraction=0.01 holds out one row of a hundred.",
        )  # fmt: skip


def _check_checkpoints(draft: Draft) -> None:
    key = "save_total_limit"
    if key not in draft.decided:
        kept = default_of(key, draft.facts)
        draft.tell(
            "default", (), keys={key: kept}, what=f"The newest {kept} checkpoints stay on disk.",
            why=f"{draft.tool} keeps all of them unless told.", fix=f"--set {key}=100 keeps more.",
        )  # fmt: skip
