"""Settles the number of GPUs and who shares a row: Ulysses, ring, or head groups on one GPU. Called by imported.py,
after model and method.

    one GPU     sequence_parallel_size 2, or the fake-parallel switch   -> fake_parallel: 2, fused_loss: true
    N GPUs      ulysses_num_chunks U                                    -> ulysses: U
                sequence_parallel_size S                                -> sequence_parallel: S
                sequence_parallel_size S with use_ring_attn             -> ring: S, or ulysses: U and ring: S / U
"""

from __future__ import annotations

from app.services.importing.draft import Draft
from app.services.importing.pasted import Setting
from planner.parallel import legal_ulysses_degrees

_SWITCHES = ("ulysses", "ulysses_chunks", "ring", "fake_parallel", "sequence_parallel")


def settle_parallelism(draft: Draft) -> None:
    """Once the GPUs are counted and the adapters' dropout is known."""
    degree = _degree(draft)
    said = {name: wish for name in _SWITCHES if (wish := draft.take(name)) is not None}
    settings = {name: wish.setting for name, wish in said.items()}
    wanted = {name: wish.value for name, wish in said.items()}
    world = draft.num_gpus
    if world == 1:
        _on_one_gpu(draft, degree, wanted, settings)
    else:
        _on_several(draft, world, degree, wanted, settings)


def _degree(draft: Draft) -> int:
    return max(int(draft.peek("sequence_parallel") or 1), int(draft.peek("ulysses_chunks") or 1), 1)


def settle_gpus(draft: Draft, *, follow_degree: bool) -> None:
    """hardware.count: processes asked for, else visible GPUs, else one, or with ``follow_degree`` the degree."""
    nodes, processes, visible = draft.take("nodes"), draft.take("processes"), draft.take("visible")
    cpu = draft.take("use_cpu")
    draft.values["hardware.gpu"] = "cpu" if cpu and cpu.value else "here"
    if cpu is not None:
        draft.tell("translated", [cpu.setting], keys={"hardware.gpu": draft.values["hardware.gpu"]})
    if nodes is not None:
        draft.put("hardware.nodes", max(1, int(nodes.value)), nodes.setting)
    count = _degree(draft) if follow_degree else 1
    if processes is not None:
        count = max(1, int(processes.value))
        draft.tell("translated", [processes.setting], keys={"hardware.count": count})
    if visible is not None:
        num_visible = max(1, len(visible.value))
        if processes is None:
            count = num_visible
            why = f"{draft.tool} would have spread the layers over them in one process." if count > 1 else ""
            draft.tell("translated", [visible.setting], keys={"hardware.count": count}, why=why)
        else:
            draft.tell("ignored", [visible.setting], why="Which GPUs: set it in front of `longfit train` as well.")
    draft.values["hardware.count"] = count


def _on_one_gpu(draft: Draft, degree: int, wanted: dict[str, object], settings: dict[str, Setting]) -> None:
    if wanted.get("ring"):
        draft.tell(
            "impossible", [settings.pop("ring")], what="One GPU has nobody to pass keys and values to.",
            why="Ring attention sends them around over several GPUs.",
            fix="fake_parallel does on one GPU what can be done there; with more GPUs: --set ring=2.",
        )  # fmt: skip
    if not wanted.get("fake_parallel") and degree == 1:
        if settings:
            draft.tell("default", settings.values(), why="With a degree of 1 a row is not shared.")
        return
    groups, note = _legal_groups(draft, degree if degree > 1 else 2)
    if groups == 1:
        draft.tell("impossible", settings.values(), what="This model's heads cannot be taken in groups.", why=note)
        return
    what = "Head groups one after another, and the loss in chunks: full-width q, k, v and logits never exist."
    why = "" if wanted.get("fake_parallel") else "There is one GPU, which nobody can share a row with. "
    draft.values |= {"fake_parallel": groups, "fused_loss": True}
    draft.decided |= {"fake_parallel", "fused_loss"}
    keys: dict[str, object] = {"fake_parallel": groups, "fused_loss": True}
    if draft.facts.offers("tiled_mlp"):
        draft.values["tiled_mlp"] = True
        draft.decided.add("tiled_mlp")
        keys["tiled_mlp"] = True
    fix = "" if wanted.get("fake_parallel") else f"With more GPUs: NPROC_PER_NODE={degree} in front, for real ranks."
    draft.tell("translated", settings.values(), what=what, why=f"{why}{note}".strip(), fix=fix, keys=keys)


def _legal_groups(draft: Draft, wanted: int) -> tuple[int, str]:
    """Head groups take whole KV heads: the next larger divisor, else the largest."""
    model = draft.model
    if model is None:
        return wanted, ""
    kv_heads = model.num_kv_heads
    legal = [groups for groups in range(1, kv_heads + 1) if kv_heads % groups == 0]
    groups = next((n for n in legal if n >= wanted), legal[-1])
    if groups == wanted:
        return groups, ""
    return groups, f"{wanted} groups do not divide the {kv_heads} KV heads; {', '.join(map(str, legal))} do."


def leave_out_dropout(draft: Draft) -> None:
    """Of the adapters, for head groups and tiles; the checks call it when the planner objects to both."""
    key = f"{draft.method}.dropout"
    had = draft.values.pop(key, 0.0)
    if not had:
        return
    implied = [found for found in draft.findings if found.kind == "implied" and key in dict(found.keys)]
    draft.findings = [found for found in draft.findings if found not in implied]
    whose = f"{draft.tool}'s own adapter dropout" if implied else "Adapter dropout"
    draft.tell(
        "ignored" if implied else "impossible", (), what=f"{whose} of {had:g} is left out.", keys={key: None},
        why="Head groups and tiles are computed twice and must see the same adapter both times.",
        fix=" ".join(f"--set {name}=null" for name in ("fake_parallel", "tiled_mlp") if name in draft.values)
        + f" --set {key}={had:g} keeps the dropout.",
    )  # fmt: skip


def _on_several(draft: Draft, world: int, degree: int, wanted: dict[str, object], settings: dict[str, Setting]) -> None:
    chunks, size = int(wanted.get("ulysses_chunks") or 1), int(wanted.get("sequence_parallel") or 1)  # type: ignore[call-overload]
    fake = settings.pop("fake_parallel", None)
    if degree == 1 and (wanted.get("ring") or (wanted.get("ulysses") and not {"ulysses_chunks"} & set(wanted))):
        degree = world
    if fake is not None:
        if not wanted["fake_parallel"]:
            draft.tell("default", [fake], why="It is off here too.")
        elif degree > 1:
            draft.tell("ignored", [fake], why=f"{degree} real ranks take a part of the heads each.")
        else:
            groups, note = _legal_groups(draft, 2)
            draft.put("fake_parallel", groups, fake, why=note)
    if degree == 1:
        if settings:
            draft.tell("default", settings.values(), why="With a degree of 1 a row is not shared.")
        return
    said = list(settings.values())
    if degree > world or world % degree:
        legal = [n for n in range(1, world + 1) if world % n == 0]
        chosen = max(n for n in legal if n <= degree)
        draft.tell(
            "impossible", said, what=f"{world} GPUs cannot share rows {degree} at a time; {chosen} do instead.",
            why=f"The degree divides the number of GPUs: {', '.join(map(str, legal))}.",
            fix=f"NPROC_PER_NODE={degree} starts as many as the degree needs.", keys={"sequence_parallel": chosen},
        )  # fmt: skip
        if chosen > 1:
            draft.values["sequence_parallel"] = chosen
            draft.decided.add("sequence_parallel")
    elif wanted.get("ring"):
        _put_ring(draft, degree, chunks if size > chunks else 1, said)
    elif chunks > 1 or wanted.get("ulysses"):
        _put_ulysses(draft, degree, world, said)
    else:
        draft.put("sequence_parallel", degree, *said)


def _put_ring(draft: Draft, degree: int, chunks: int, said: list[Setting]) -> None:
    keys = {"ring": degree} if chunks == 1 or degree % chunks else {"ulysses": chunks, "ring": degree // chunks}
    draft.values |= keys
    draft.decided |= set(keys)
    draft.tell("translated", said, keys=keys)


def _put_ulysses(draft: Draft, degree: int, world: int, said: list[Setting]) -> None:
    model = draft.model
    legal = None if model is None else legal_ulysses_degrees(model, world)
    if model is None or legal is None or degree in legal:
        draft.values["ulysses"] = degree
        draft.decided.add("ulysses")
        draft.tell("translated", said, keys={"ulysses": degree})
        return
    draft.values["sequence_parallel"] = degree
    draft.decided.add("sequence_parallel")
    draft.tell(
        "impossible", said, what=f"Ulysses alone cannot share {degree} ways here; a ring takes the rest.",
        why=f"{model.name} has {model.num_attention_heads} query and {model.num_kv_heads} KV heads; Ulysses degrees up "
        f"to {world}: {', '.join(map(str, legal))}.",
        fix="sequence_parallel chooses Ulysses and ring degrees; --set ulysses=N asks for one exactly.",
        keys={"sequence_parallel": degree},
    )  # fmt: skip
