"""Variables in front of a command and the flags of launchers, as rules. Called by imported.py for every dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.services.importing.draft import Draft
from app.services.importing.pasted import Setting
from app.services.importing.rules import Rule, ignored, impossible, wishes
from app.services.importing.values import NotUnderstood, one, texts, truth, whole

_JOINED = "longfit starts and joins its processes by itself."


def _devices(value: Any) -> tuple[str, ...]:
    """CUDA_VISIBLE_DEVICES=0,1; an empty one hides every GPU."""
    return texts(value) if str(one(value)).strip() else ()


def _processes(value: Any) -> int:
    word = str(one(value)).strip().lower()
    if word in ("gpu", "auto"):
        raise NotUnderstood(f"{word!r} is as many as the machine has; say how many.")
    return whole(value)


def _use_hf(draft: Draft, setting: Setting) -> None:
    draft.wish("use_hf", truth(setting.value), setting)


def _chunked_loss(draft: Draft, setting: Setting) -> None:
    if whole(setting.value):
        draft.wish("fused_loss", True, setting)
    else:
        draft.tell("default", [setting], why="The logits of a row are formed at once.")


VARIABLES: Mapping[str, Rule] = {
    "NPROC_PER_NODE": wishes("processes", _processes),
    "CUDA_VISIBLE_DEVICES": wishes("visible", _devices),
    "ASCEND_RT_VISIBLE_DEVICES": impossible("longfit runs on NVIDIA GPUs and on CPUs."),
    "NNODES": wishes("nodes", whole),
    "USE_HF": _use_hf,
    "USE_MODELSCOPE_HUB": ignored("Ids without a prefix are looked up where the tool would."),
    "CELOSS_PARALLEL_SIZE": _chunked_loss,
    "FORCE_TORCHRUN": ignored(_JOINED),
    "DISABLE_VERSION_CHECK": ignored("Versions are checked by longfit doctor."),
    **{name: ignored(_JOINED) for name in ("MASTER_PORT", "MASTER_ADDR", "NODE_RANK", "RANK", "WORLD_SIZE")},
}

LAUNCHER: Mapping[str, Rule] = {
    "nproc_per_node": wishes("processes", _processes),
    "num_processes": wishes("processes", _processes),
    "num_gpus": wishes("processes", _processes),
    "nnodes": wishes("nodes", whole),
    "num_nodes": wishes("nodes", whole),
    "num_machines": wishes("nodes", whole),
    "include": impossible("Which GPUs: CUDA_VISIBLE_DEVICES in front of `longfit train`."),
    "gpu_ids": wishes("visible", _devices),
    "config_file": impossible("What stands in accelerate's file was not pasted.", "Import its settings as well."),
    "mixed_precision": ignored("dtype says it."),
    "use_deepspeed": wishes("deepspeed", truth),
    "use_fsdp": wishes("fsdp", truth),
    "multi_gpu": ignored(_JOINED),
}


def apply_variable(draft: Draft, setting: Setting) -> None:
    rule = VARIABLES.get(setting.name.upper())
    if rule is None:
        draft.tell("ignored", [setting], why="Set it in front of `longfit train` as well, if the run needs it.")
    else:
        rule(draft, setting)


def apply_launcher_flag(draft: Draft, setting: Setting) -> None:
    LAUNCHER.get(setting.name, ignored(_JOINED))(draft, setting)
