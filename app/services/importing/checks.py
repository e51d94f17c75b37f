"""What goes wrong after a paste, said before anything loads: model, missing keys, degrees, lengths, a noisy loss.

Called by imported.py, last. The plan refuses what cannot be; these findings say it in the words of the paste.
"""

from __future__ import annotations

from app.services.importing.draft import Draft
from planner.checks import next_factor
from planner.errors import ConfigError
from planner.parallel import choose_degrees

STEADY_ROWS = 16  # of an optimizer step: what ms-swift aims at when nobody says
NOISY_ROWS = 8  # below this, single rows move the loss visibly


def check_draft(draft: Draft) -> None:
    _check_model(draft)
    _check_data(draft)
    _check_length(draft)
    _check_degrees(draft)
    _check_batch(draft)
    _check_evaluation(draft)


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
    length, model = draft.values.get("max_length"), draft.model
    if not length:
        draft.tell("impossible", (), what="No length of a row is known.", fix="--set max_length=8192")
        return
    if model is None:
        return
    native = model.max_position_embeddings
    scaled = native * float((draft.values.get("rope_scaling") or {}).get("factor", 1))
    if int(length) > scaled:
        draft.tell(
            "impossible", (), what=f"max_length {length} is beyond the {native} positions of {model.name}.",
            why="Positions that the model never saw give garbage without RoPE scaling.",
            fix=f"--set rope_scaling.type=yarn --set rope_scaling.factor={next_factor(int(length), native):g}, or "
            f"--set max_length={native}.",
        )  # fmt: skip


def _check_degrees(draft: Draft) -> None:
    model, world = draft.model, draft.num_gpus
    if model is None or world == 1:
        return
    degrees = {key: draft.values.get(key) for key in ("sequence_parallel", "ulysses", "ring")}
    try:
        choose_degrees(model, world, gpus_per_node=int(draft.values.get("hardware.count", 1)), **degrees)
    except ConfigError as error:
        draft.tell("impossible", (), what=error.what, why=error.why, fix=error.fix)


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
