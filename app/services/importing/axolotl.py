"""The keys of an axolotl YAML as rules.

Source: src/axolotl/utils/schemas/{config,training,peft,datasets}.py and the examples folder of axolotl 0.10 to 0.1x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.services.importing.draft import Draft
from app.services.importing.pasted import Setting
from app.services.importing.rules import (
    Dialect,
    Rule,
    checkpointing,
    default,
    ignored,
    impossible,
    optimizer,
    scheduler,
    sets,
    wishes,
)
from app.services.importing.swift import ATTENTION, LORA
from app.services.importing.trainer_arguments import TRAINER
from app.services.importing.values import NotUnderstood, is_off, number, one, text, texts, truth, whole

_SHAPES = {
    "alpaca": "alpaca", "sharegpt": "sharegpt", "chat_template": "auto", "completion": "text", "input_output": "auto",
    "chat_template.default": "auto",
}  # fmt: skip
_TEMPLATE = "The model's own chat template is used."
_CACHE = "Rows are read once into a memory-mapped store, cached by content."
_KERNELS = "longfit chooses kernels by itself and proves that they are active."
_RL = "longfit does supervised fine-tuning and continued pretraining."


def _datasets(draft: Draft, setting: Setting) -> None:
    items = setting.value if isinstance(setting.value, list) else [setting.value]
    entries, shapes, lost = [], [], []
    for item in items:
        if not isinstance(item, Mapping):
            entries.append(str(item))
            continue
        files = item.get("data_files")
        path = str(item.get("path") or "")
        names = texts(files) if files and not is_off(files) else (path,)
        entries += [name for name in names if name]
        if item.get("type") is not None and setting.name != "test_datasets":
            shapes.append(item["type"])
        lost += [
            key for key in item if key in ("field_messages", "message_property_mappings", "roles", "shards", "name")
        ]
    draft.wish("eval_data" if setting.name == "test_datasets" else "train_data", tuple(entries), setting)
    _shape(draft, setting, shapes)
    if lost:
        draft.tell(
            "impossible", [setting], what=f"Not carried over: {', '.join(dict.fromkeys(lost))}.",
            why="Columns and roles are recognised by their usual names.", fix="Rename them in the file.",
        )  # fmt: skip


def _shape(draft: Draft, setting: Setting, shapes: list[Any]) -> None:
    names = {str(shape) for shape in shapes}
    if not names:
        return
    known = {_SHAPES[name] for name in names if name in _SHAPES}
    if len(names) == 1 and len(known) == 1:
        draft.put("data.shape", known.pop(), setting)
    elif not all(name in _SHAPES for name in names):
        draft.tell(
            "unknown", [setting], what=f"Prompt types of axolotl: {', '.join(sorted(names - set(_SHAPES)))}.",
            why="Each row's shape is recognised by its keys instead.", fix="longfit data PRESET shows the shapes.",
        )  # fmt: skip


def _adapter(draft: Draft, setting: Setting) -> None:
    draft.wish("method", "full" if is_off(setting.value) else text(setting.value), setting)


def _target_linear(draft: Draft, setting: Setting) -> None:
    if truth(setting.value):
        draft.wish("adapter.targets", ("all-linear",), setting)
    else:
        draft.tell("default", [setting], why="Targets are those that are named.")


def _bf16(draft: Draft, setting: Setting) -> None:
    if str(one(setting.value)).lower() in ("auto", "true", "full"):
        draft.wish("dtype", "bfloat16", setting)
    else:
        draft.tell("default", [setting], why="bfloat16 is not switched on by it.")


def _float32(draft: Draft, setting: Setting) -> None:
    if truth(setting.value):
        draft.wish("dtype", "float32", setting)
    else:
        draft.tell("default", [setting], why="float32 is not switched on by it.")


def _adapter_dtype(draft: Draft, setting: Setting) -> None:
    """Off: PEFT leaves the adapters in the dtype of the base."""
    base = str(draft.peek("dtype") or "bfloat16")
    draft.wish("adapter.adapter_dtype", "float32" if truth(setting.value) else base, setting)


def _plugins(draft: Draft, setting: Setting) -> None:
    names = texts(setting.value)
    for name in names:
        if "liger" in name.lower():
            draft.wish("liger", True, setting)
        elif "cut_cross_entropy" in name.lower():
            draft.wish("fused_loss", True, setting)
        else:
            draft.tell(
                "impossible", [setting], what=f"The plugin {name} is not offered.", why="No code of others is loaded."
            )
    if not names:
        draft.tell("default", [setting], why="No plugin is named.")


def _attention(version: str) -> Rule:
    def rule(draft: Draft, setting: Setting) -> None:
        if truth(setting.value):
            draft.wish("attention", version, setting)
        else:
            draft.tell("default", [setting], why="Another kernel is used.")

    return rule


def _liger_part(draft: Draft, setting: Setting) -> None:
    if truth(setting.value) and draft.peek("liger") is None:
        draft.wish("liger", True, setting)
    else:
        draft.tell("ignored", [setting], why="The Liger kernels come as one.")


def _per_epoch(key: str) -> Rule:
    def rule(draft: Draft, setting: Setting) -> None:
        draft.decided.add(key)
        draft.tell(
            "impossible", [setting], what="Intervals are counted in steps here.",
            fix=f"--set {key}=100; the plan shows how many steps an epoch has.",
        )  # fmt: skip

    return rule


def _wandb(draft: Draft, setting: Setting) -> None:
    if is_off(setting.value):
        draft.tell("default", [setting], why="metrics.jsonl is always written.")
    elif setting.name == "wandb_project":
        draft.put("report_to", ["wandb"], setting, why="Set WANDB_PROJECT for the project's name.")
    else:
        draft.tell("ignored", [setting], why="Weights & Biases reads its settings from WANDB_* variables.")


def _excess(draft: Draft, setting: Setting) -> None:
    word = text(setting.value)
    names = {"drop": "drop", "truncate": "truncate_right"}
    if word not in names:
        raise NotUnderstood(f"{word!r} is neither drop nor truncate.")
    draft.put("data.over_length", names[word], setting)


RULES: Mapping[str, Rule] = {
    **TRAINER,
    **LORA,
    "base_model": sets("model", text),
    "base_model_config": ignored("The configuration is the model's."),
    "model_type": ignored("The architecture is read from the model's config.json."),
    "tokenizer_type": ignored("The tokenizer is the model's."),
    "tokenizer_config": ignored("The tokenizer is the model's."),
    "trust_remote_code": ignored("Supported families need no code of the model's author."),
    "strict": ignored("What is not understood is told as a finding."),
    "adapter": _adapter,
    "lora_model_dir": impossible("Training does not begin from an adapter."),
    "lora_r": wishes("adapter.rank", whole),
    "lora_target_linear": _target_linear,
    "lora_fan_in_fan_out": ignored("It follows from the model."),
    "peft_use_dora": LORA["use_dora"],
    "peft_autocast_adapter_dtype": _adapter_dtype,
    "peft_use_rslora": LORA["use_rslora"],
    "peft_init_lora_weights": LORA["init_weights"],
    "peft_layers_to_transform": impossible("Adapters go to every layer."),
    "loraplus_lr_ratio": LORA["lorap_lr_ratio"],
    "load_in_4bit": wishes("quant_bits", lambda value: 4 if truth(value) else 0),
    "load_in_8bit": wishes("quant_bits", lambda value: 8 if truth(value) else 0),
    "bnb_config_kwargs": ignored("The 4-bit base is NF4 with double quantisation."),
    "datasets": _datasets,
    "test_datasets": _datasets,
    "pretraining_dataset": _datasets,
    "shuffle_merged_datasets": default("Rows are shuffled by the seed, anew each epoch."),
    "dataset_prepared_path": ignored(_CACHE),
    "dataset_processes": ignored(_CACHE),
    "dataset_exact_deduplication": impossible("Equal rows are trained on as often as they stand there."),
    "skip_prepare_dataset": ignored(_CACHE),
    "val_set_size": wishes("eval_fraction", number),
    "chat_template": ignored(_TEMPLATE),
    "chat_template_jinja": impossible(_TEMPLATE, "Put chat_template.jinja into the model's folder."),
    "default_system_message": wishes("system", text),
    "special_tokens": ignored("Padding is never seen by the model; end-of-turn comes from the chat template."),
    "tokens": impossible("The vocabulary stays as it is."),
    "train_on_inputs": lambda draft, setting: draft.put(
        "data.train_on", "all" if truth(setting.value) else "assistant", setting
    ),
    "roles_to_train": ignored("Targets are the assistant's tokens."),
    "sequence_len": sets("max_length", whole),
    "excess_length_strategy": _excess,
    "min_sample_len": ignored("Short rows are kept; rows without a target are reported."),
    "sample_packing": wishes("packing", truth),
    "eval_sample_packing": ignored("Held-out rows are laid out one by one; their loss is the same."),
    "sample_packing_group_size": ignored("Packs are filled best-fit over all rows."),
    "sample_packing_bin_size": ignored("Packs are filled best-fit over all rows."),
    "sample_packing_sequentially": impossible("Packs are filled best-fit and shuffled."),
    "multipack_real_batches": ignored("Rows of a batch are laid end to end."),
    "pad_to_sequence_len": ignored("Rows are laid end to end; nothing is padded to max_length."),
    "batch_flattening": wishes("padding_free", lambda value: one(value) == "auto" or truth(value)),
    "group_by_length": TRAINER["group_by_length"],
    "micro_batch_size": sets("per_device_train_batch_size", whole),
    "batch_size": wishes("total_batch", whole),
    "eval_batch_size": sets("per_device_eval_batch_size", whole),
    "num_epochs": sets("num_train_epochs", number),
    "optimizer": optimizer,
    "lr_scheduler": scheduler,
    "cosine_min_lr_ratio": impossible("The cosine falls to zero."),
    "embedding_lr": impossible("All trained parameters share one learning rate."),
    "lr_groups": impossible("All trained parameters share one learning rate."),
    "bf16": _bf16,
    "bfloat16": _bf16,
    "float16": TRAINER["fp16"],
    "float32": _float32,
    "fp8": impossible("Training is in bfloat16, float16 or float32."),
    "gradient_checkpointing": checkpointing,
    "activation_offloading": wishes("checkpoint_offload", lambda value: not is_off(value)),
    "attn_implementation": ATTENTION["attn_implementation"],
    "flash_attention": _attention("auto"),
    "sdp_attention": _attention("sdpa"),
    "xformers_attention": _attention("xformers"),
    "flex_attention": _attention("flex"),
    "eager_attention": _attention("eager"),
    "s2_attention": impossible("Attention is exact and full.", "context_parallel_size, or fake_parallel on one GPU"),
    "plugins": _plugins,
    **dict.fromkeys(("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_layer_norm"), _liger_part),
    "liger_fused_linear_cross_entropy": wishes("fused_loss", truth),
    "liger_cross_entropy": ignored("The loss is formed in chunks, or whole; see fused_loss."),
    "cut_cross_entropy": wishes("fused_loss", truth),
    "chunked_cross_entropy": wishes("fused_loss", truth),
    "tiled_mlp": wishes("tiled_mlp", truth),
    "sequence_parallel_degree": wishes("sequence_parallel", whole),
    "context_parallel_size": wishes("sequence_parallel", whole),
    "heads_k_stride": ignored("The ring passes whole blocks of keys and values."),
    "ring_attn_func": wishes("ring", lambda value: not is_off(value)),
    "dp_shard_size": ignored("What sharding is offered follows from fsdp."),
    "rope_scaling": wishes("rope", lambda value: value if isinstance(value, Mapping) else text(value)),
    "overrides_of_model_config": impossible("The model's own config.json rules.", "--set rope_scaling.type=yarn"),
    "saves_per_epoch": _per_epoch("save_steps"),
    "evals_per_epoch": _per_epoch("eval_steps"),
    "early_stopping_patience": impossible("A run ends after its steps; keep_best keeps the best checkpoint."),
    "loss_watchdog_threshold": ignored("A loss that is not finite stops the run."),
    "loss_watchdog_patience": ignored("A loss that is not finite stops the run."),
    "use_tensorboard": lambda draft, setting: draft.put(
        "report_to", ["tensorboard"] if truth(setting.value) else (), setting
    ),
    **{
        f"wandb_{name}": _wandb for name in ("project", "entity", "watch", "name", "log_model", "run_id", "mode")
    },
    "mlflow_tracking_uri": impossible("Metrics are not sent to MLflow.", "metrics.jsonl, tensorboard, trackio, wandb"),
    "use_mlflow": impossible("Metrics are not sent to MLflow.", "metrics.jsonl, tensorboard, trackio, wandb"),
    "debug": ignored("longfit logs tells what happened."),
    "hf_use_auth_token": ignored("Nothing is uploaded."),
    "push_dataset_to_hub": ignored("Nothing is uploaded."),
    "unfrozen_parameters": impossible("Full fine-tuning trains everything.", "--set lora.rank=64"),
    "rl": impossible(_RL),
    "reward_model": impossible(_RL),
    "device_map": ignored("Each GPU holds the model; what is shared is the row."),
    "low_cpu_mem_usage": default("Weights are loaded one by one."),
    **{
        name: ignored(_KERNELS)
        for name in ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "flash_attn_cross_entropy",
                     "flash_attn_rms_norm", "flash_attn_fuse_qkv", "flash_attn_fuse_mlp", "unsloth_lora_mlp",
                     "unsloth_lora_qkv", "unsloth_lora_o", "unsloth_cross_entropy_loss")
    },
}  # fmt: skip


def finish(draft: Draft) -> None:
    """What axolotl does by itself: its schemas, and Transformers below them."""
    _settle_total_batch(draft)
    if draft.method != "full":
        draft.imply(f"{draft.method}.rank", 8, why="PEFT's default")
        draft.imply(f"{draft.method}.alpha", 8, why="PEFT's default")
    draft.imply("max_length", 512)
    draft.imply("optim", "adamw_torch_fused")
    if "warmup_steps" not in draft.decided:
        draft.imply("warmup_ratio", 0.03, why="at most 100 steps there")
    draft.imply("save_steps", 500)
    draft.imply("logging_steps", 500)
    draft.imply("data.over_length", "drop")


def _settle_total_batch(draft: Draft) -> None:
    wish = draft.take("total_batch")
    if wish is None:
        return
    share = int(draft.values.get("per_device_train_batch_size", 1)) * draft.num_gpus
    accumulation = max(1, math.ceil(int(wish.value) / share))
    draft.put("gradient_accumulation_steps", accumulation, wish.setting, why=f"{wish.value} rows / {share}.")


AXOLOTL = Dialect(
    name="axolotl", title="axolotl", rules=RULES, finish=finish, has_flags=False, gpus_follow_degree=True,
    markers=frozenset({"base_model", "sequence_len", "micro_batch_size", "adapter", "sample_packing", "datasets",
                       "val_set_size", "num_epochs", "lora_target_linear", "lora_r", "flash_attention",
                       "dataset_prepared_path", "pad_to_sequence_len"}),
)  # fmt: skip
