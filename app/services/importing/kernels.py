"""Settles how things are computed: attention kernel, Liger, loss, recomputation, sharding. Called by imported.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.services.importing.draft import Draft, Wish
from app.services.importing.values import is_off
from planner.attention_kernels import BY_NUMBER, VERSIONS, why_not

_IMPLEMENTATIONS = {
    "flash_attn": "auto", "flash_attention": "auto", "flash": "auto", "fa": "auto", "auto": "auto", "true": "auto",
    "flash_attention_2": "2", "flash_attn_2": "2", "fa2": "2", "2": "2", "kernels-community/flash-attn2": "2",
    "flash_attention_3": "3", "flash_attn_3": "3", "fa3": "3", "3": "3", "kernels-community/flash-attn3": "3",
    "kernels-community/vllm-flash-attn3": "3",
    "flash_attention_4": "4", "flash_attn_4": "4", "fa4": "4", "4": "4",
    "sdpa": "sdpa",
}  # fmt: skip


def settle_kernels(draft: Draft) -> None:
    _settle_attention(draft)
    _settle_liger(draft)
    _settle_loss(draft)
    _settle_checkpointing(draft)
    _settle_tiles(draft)
    _settle_sharding(draft)


def _settle_attention(draft: Draft) -> None:
    """The version by number decides, then the implementation by name, then the bare switch."""
    wishes = [wish for name in ("attention_version", "attention", "attention_switch") if (wish := draft.take(name))]
    if not wishes:
        return
    settings = [wish.setting for wish in wishes]
    word = next((str(wish.value).strip().lower() for wish in wishes if str(wish.value).lower() != "auto"), "auto")
    if word in ("false", "0", "none", "off", "disabled"):
        draft.tell("ignored", settings, why="Scores of a whole row are never formed: a flash kernel always runs.")
        return
    version = _IMPLEMENTATIONS.get(word.removesuffix(".0"))
    if version is None:
        draft.tell(
            "impossible", settings, what=f"Attention by {word} is not offered; the kernel is chosen by itself.",
            why="It would form the scores of a whole row, or needs another library.",
            fix=f"Offered: flash_attention: {', '.join(VERSIONS)}.",
        )  # fmt: skip
    elif version == "auto":
        draft.tell("default", settings, why="The fastest kernel that is installed and gives right numbers is used.")
    else:
        _ask_for_version(draft, version, wishes)


def _ask_for_version(draft: Draft, version: str, wishes: list[Wish]) -> None:
    settings = [wish.setting for wish in wishes]
    if not draft.facts.offers("flash_attention"):
        draft.tell(
            "default" if version == "sdpa" else "impossible", settings,
            what="" if version == "sdpa" else "This version of longfit has no choice of attention kernels.",
            why="Torch's flash kernel runs: exact, and linear in memory.",
        )  # fmt: skip
        return
    reason = _why_not_here(draft, version)
    if reason:
        draft.tell(
            "impossible", settings, what=f"FlashAttention-{version} cannot run on this machine; auto takes its place.",
            why=f"{reason}.", fix=f"On a machine that has it: --set flash_attention={version}.",
            keys={"flash_attention": "auto"},
        )  # fmt: skip
        return
    draft.values["flash_attention"] = version
    draft.decided.add("flash_attention")
    draft.tell("translated", settings, keys={"flash_attention": version})


def _why_not_here(draft: Draft, version: str) -> str:
    if version not in BY_NUMBER:
        return ""
    machine = draft.facts.machine()
    head_dim = draft.model.head_dim if draft.model else 128
    return why_not(
        BY_NUMBER[version], capability=machine.compute_capability, dtype=draft.values.get("dtype", "bfloat16"),  # type: ignore[index]
        head_dim=head_dim, packages=machine.packages,
    )  # fmt: skip


def _settle_liger(draft: Draft) -> None:
    wish, config = draft.take("liger"), draft.take("liger_config")
    settings = [found.setting for found in (wish, config) if found is not None]
    if wish is None or not wish.value:
        if settings:
            draft.tell("default", settings, why="Liger is off here too.")
        return
    keys: dict[str, Any] = {}
    if draft.facts.offers("liger"):
        keys["liger"] = True
    knobs = draft.facts.knobs("liger")
    if "liger" not in keys or not any("loss" in knob or "entropy" in knob for knob in knobs):
        keys["fused_loss"] = True
    draft.values |= keys
    draft.decided |= set(keys)
    if "liger" in keys:
        draft.tell("translated", settings, keys=keys)
    else:
        draft.tell(
            "impossible", settings, what="Liger's kernels are not in this version; its loss is, as fused_loss.",
            why="Not forming the logits is most of what Liger saves; norms, RoPE and SwiGLU run as in the model.",
            keys=keys,
        )  # fmt: skip


def _settle_loss(draft: Draft) -> None:
    wish = draft.take("fused_loss")
    if wish is None:
        return
    if wish.value:
        draft.put("fused_loss", True, wish.setting)
    elif draft.values.get("fused_loss"):
        draft.tell("ignored", [wish.setting], why="The loss is formed in chunks for another reason.")
    else:
        draft.tell("default", [wish.setting], why="The logits of a row are formed at once.")


def _settle_checkpointing(draft: Draft) -> None:
    wish, offload = draft.take("gradient_checkpointing"), draft.take("checkpoint_offload")
    if wish is not None:
        draft.put("gradient_checkpointing", bool(wish.value), wish.setting)
    if offload is None:
        return
    if is_off(offload.value):
        draft.tell("default", [offload.setting], why="What checkpointing keeps stays on the GPU.")
    elif draft.facts.offers("checkpoint_offload"):
        draft.put("checkpoint_offload", True, offload.setting)
    else:
        draft.tell(
            "impossible", [offload.setting],
            what="What checkpointing keeps stays on the GPU in this version of longfit.",
            fix="A smaller max_length, or fewer tokens a GPU by sequence_parallel.",
        )  # fmt: skip


def _settle_tiles(draft: Draft) -> None:
    wish = draft.take("tiled_mlp")
    if wish is None:
        return
    if not wish.value:
        draft.tell("default", [wish.setting], why="It is off here too.")
    elif draft.facts.offers("tiled_mlp"):
        draft.put("tiled_mlp", True, wish.setting)
    else:
        draft.tell(
            "impossible", [wish.setting], what="The MLP runs over whole rows in this version of longfit.",
            fix="fused_loss and gradient_checkpointing save more at most lengths; see longfit plan.",
        )  # fmt: skip


def _settle_sharding(draft: Draft) -> None:
    """DeepSpeed stages and FSDP become fsdp, when this longfit has it; frozen weights that were sent to host memory
    are streamed from there, which takes no second GPU."""
    config = draft.take("fsdp_config")
    wishes = [wish for wish in (draft.take("deepspeed"), draft.take("fsdp")) if wish is not None]
    if config is not None and not wishes and not is_off(config.value):
        wishes, config = [config], None  # axolotl's FSDP 2 is switched on by its configuration alone
    streams = draft.method != "full" and draft.facts.offers("weight_streaming")
    for wish in wishes:
        word = _sharding_word(wish.value)
        if is_off(wish.value) or word == "zero0":
            draft.tell("default", [wish.setting], why="Nothing is sharded here either.")
        elif streams and "zero3" in word and "offload" in word:
            draft.put(
                "weight_streaming", True, wish.setting,
                what="Frozen weights wait in host memory and come layer by layer; adapters and their states stay.",
            )  # fmt: skip
        elif draft.facts.offers("fsdp"):
            offload = ", without the offload" if "offload" in word else ""
            draft.put("fsdp", True, wish.setting, what=f"Weights, gradients and states are sharded{offload}.")
        else:
            draft.tell(
                "impossible", [wish.setting], what="Sharding is not in this version of longfit: each GPU holds the "
                "weights whole.", why=_what_is_lost(draft),
                fix="--set lora=null --set qlora=true quarters the weights; sequence_parallel divides the activations.",
            )  # fmt: skip
    if config is not None:
        draft.tell("ignored", [config.setting], why="It belongs to the sharding.")


def _sharding_word(value: Any) -> str:
    if isinstance(value, Mapping):
        zero = value.get("zero_optimization") or {}
        if "stage" not in zero:
            return "configuration"
        device = (zero.get("offload_param") or {}).get("device", "none")
        return f"zero{zero['stage']}{'' if device == 'none' else '_offload'}"
    return str(value).lower()


def _what_is_lost(draft: Draft) -> str:
    model = draft.model
    if model is None:
        return "With adapters gradients and states are small; the weights are what sharding would divide."
    return f"Its weights take {2 * model.num_parameters / 1e9:.1f} GB in 16 bits on each."
