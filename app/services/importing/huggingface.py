"""The arguments of TRL's SFT trainer and of scripts built on Transformers' Trainer, as rules.

Source: trl/trainer/{sft_config,model_config}.py and trl/scripts/utils.py of TRL 0.2x to 1.x, TrainingArguments of
Transformers 5, and the example scripts run_clm.py and train.py that many copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.services.importing.draft import Draft
from app.services.importing.pasted import Setting
from app.services.importing.rules import Dialect, Rule, default, ignored, impossible, sets, wishes
from app.services.importing.swift import ATTENTION, GALORE, LORA
from app.services.importing.trainer_arguments import TRAINER
from app.services.importing.values import NotUnderstood, dtype, is_off, one, text, texts, truth, whole

_ROWS = "Columns are recognised by their usual names."
_TEMPLATE = "The model's own chat template is used."


def _mixture(value: Any) -> tuple[str, ...]:
    """TRL's ``datasets:`` list: {path: json, data_files: a.jsonl} or {path: org/name}."""
    if not isinstance(value, (list, tuple)):
        raise NotUnderstood("It needs a list of sets as its value.")
    return tuple(source for item in value for source in _sources(item))


def _sources(item: Any) -> tuple[str, ...]:
    if not isinstance(item, Mapping):
        return (str(item),)
    files = item.get("data_files")
    if files:
        return texts(list(files.values()) if isinstance(files, Mapping) else files)
    return (str(item.get("path") or item.get("dataset_name") or ""),)


def _data_files(value: Any) -> tuple[str, ...]:
    value = one(value) if not isinstance(value, (list, tuple)) else value
    return texts([file for found in value.values() for file in texts(found)] if isinstance(value, Mapping) else value)


def _dataset_name(draft: Draft, setting: Setting) -> None:
    """load_dataset("json", data_files=...) names a format, not a set."""
    word = text(setting.value)
    if word in ("json", "csv", "parquet", "text"):
        draft.tell("ignored", [setting], why="The format is seen from the file.")
    else:
        draft.wish("train_data", (word,), setting)


def _packing_strategy(draft: Draft, setting: Setting) -> None:
    word = text(setting.value)
    if word == "bfd":
        draft.tell("default", [setting], why="Packs are filled best-fit decreasing, samples stay whole.")
    else:
        draft.tell(
            "impossible", [setting], what=f"Packing by {word} is not offered; packs are filled best-fit.",
            why="Samples stay whole, so that none is trained without its beginning.",
            fix="--set data.over_length=split cuts rows that are longer than a pack." if "split" in word else "",
        )  # fmt: skip


def _loss_type(draft: Draft, setting: Setting) -> None:
    word = text(setting.value)
    if word == "chunked_nll":
        draft.wish("fused_loss", True, setting)
    elif word == "nll":
        draft.tell("default", [setting], why="The loss is plain cross entropy.")
    else:
        draft.tell("impossible", [setting], what=f"The loss {word} is not offered.", why="It is plain cross entropy.")


def _truncation(draft: Draft, setting: Setting) -> None:
    names = {"keep_start": "truncate_right", "keep_end": "truncate_left"}
    word = text(setting.value)
    if word not in names:
        raise NotUnderstood(f"{word!r} is neither keep_start nor keep_end.")
    draft.put("data.over_length", names[word], setting)


def _assistant_only(draft: Draft, setting: Setting) -> None:
    draft.put("data.train_on", "assistant" if truth(setting.value) else "all", setting)


_SUBSET = impossible("The default subset is read.", off=lambda v: is_off(v) or v in ("default", "main"))

RULES: Mapping[str, Rule] = {
    **TRAINER,
    **LORA,
    **GALORE,
    **ATTENTION,
    "model_name_or_path": sets("model", text),
    "model": sets("model", text),
    "model_name": sets("model", text),
    "tokenizer_name": ignored("The tokenizer is the model's."),
    "config_name": ignored("The configuration is the model's."),
    "model_revision": impossible("The revision in the cache is used.", off=lambda v: is_off(v) or v == "main"),
    "trust_remote_code": ignored("Supported families need no code of the model's author."),
    "torch_dtype": wishes("dtype", dtype),
    "dtype": wishes("dtype", dtype),
    "use_peft": wishes("use_peft", truth),
    "use_lora": wishes("use_peft", truth),
    "lora_r": wishes("adapter.rank", whole),
    "lora_task_type": default("The task is causal language modelling."),
    "task_type": default("The task is causal language modelling.", while_=lambda v: "CAUSAL" in str(v).upper()),
    "peft_type": ignored("Adapters are LoRA's."),
    "adapter_seed": ignored("seed rules the initialisation of adapters, too."),
    "inference_mode": ignored("Adapters are trained."),
    "layers_to_transform": impossible("Adapters go to every layer."),
    "rank_pattern": impossible("All adapters have one rank."),
    "use_bnb_nested_quant": wishes("adapter.double_quant", truth),
    "load_in_4bit": wishes("quant_bits", lambda value: 4 if truth(value) else 0),
    "load_in_8bit": wishes("quant_bits", lambda value: 8 if truth(value) else 0),
    "dataset_name": _dataset_name,
    "dataset": wishes("train_data", texts),
    "datasets": wishes("train_data", _mixture),
    "data_path": wishes("train_data", texts),
    "train_file": wishes("train_data", texts),
    "data_files": wishes("train_data", _data_files),
    "validation_file": wishes("eval_data", texts),
    "eval_data_path": wishes("eval_data", texts),
    "dataset_config": _SUBSET,
    "dataset_config_name": _SUBSET,
    "dataset_train_split": ignored("The split named train is read."),
    "dataset_test_split": ignored("Held-out data is named by data.eval or data.eval_fraction."),
    "split": ignored("The split named train is read."),
    "dataset_streaming": default("Rows are read from disk as they are needed, without holding them in memory."),
    "streaming": default("Rows are read from disk as they are needed, without holding them in memory."),
    "test_split_size": wishes("eval_fraction", lambda value: float(one(value))),
    "validation_split_percentage": wishes("eval_fraction", lambda value: float(one(value)) / 100),
    "dataset_text_field": default(_ROWS, while_=lambda value: text(value) == "text"),
    "dataset_kwargs": ignored(_ROWS),
    "dataset_num_proc": ignored("Rows are read once into a memory-mapped store, cached by content."),
    "preprocessing_num_workers": ignored("Rows are read once into a memory-mapped store, cached by content."),
    "overwrite_cache": ignored("Rows are read once into a memory-mapped store, cached by content."),
    "shuffle_dataset": default("Rows are shuffled by the seed, anew each epoch."),
    "max_length": sets("max_length", whole),
    "max_seq_length": sets("max_length", whole),
    "model_max_length": sets("max_length", whole),
    "block_size": sets("max_length", whole),
    "truncation_mode": _truncation,
    "packing": wishes("packing", truth),
    "packing_strategy": _packing_strategy,
    "eval_packing": ignored("Held-out rows are laid out one by one; their loss is the same."),
    "padding_free": wishes("padding_free", truth),
    "pad_to_multiple_of": ignored("Rows are padded to what the kernels and degrees need, by themselves."),
    "pad_token": ignored("Padding is never seen by the model."),
    "eos_token": ignored(_TEMPLATE),
    "chat_template_path": impossible(_TEMPLATE, "Put chat_template.jinja into the model's folder."),
    "chat_template": ignored(_TEMPLATE),
    "assistant_only_loss": _assistant_only,
    "completion_only_loss": _assistant_only,
    "train_on_inputs": lambda draft, setting: draft.put(
        "data.train_on", "all" if truth(setting.value) else "assistant", setting
    ),
    "loss_type": _loss_type,
    "activation_offloading": wishes("checkpoint_offload", truth),
    "use_liger": wishes("liger", truth),
    "use_flash_attn": ATTENTION["use_flash_attn"],
    "use_unsloth": impossible("longfit has kernels of its own; `longfit plan` recommends."),
    "sequence_parallel_size": wishes("sequence_parallel", whole),
    "context_parallel_size": wishes("sequence_parallel", whole),
    "rope_scaling": wishes("rope", lambda value: one(value) if not isinstance(value, Mapping) else value),
    "model_init_kwargs": ignored("The model's own config.json rules."),
    "device_map": ignored("Each GPU holds the model; what is shared is the row."),
    "low_cpu_mem_usage": default("Weights are loaded one by one."),
    "use_cache": ignored("There is no key-value cache in training."),
    "gradient_checkpointing_use_reentrant": TRAINER["gradient_checkpointing_kwargs"],
    "config": lambda draft, setting: draft.tell(
        "impossible", [setting], what="The settings stand in a file.", fix=f"longfit import {text(setting.value)}"
    ),
}  # fmt: skip


def finish(draft: Draft) -> None:
    """What TRL's SFTConfig and ModelConfig do by themselves."""
    method = draft.method
    if method != "full":
        for knob, value in {"rank": 16, "alpha": 32, "dropout": 0.05}.items():
            draft.imply(f"{method}.{knob}", value)
    draft.imply("max_length", 1024)
    draft.imply("per_device_train_batch_size", 8)
    draft.imply("learning_rate", 2e-5)
    draft.imply("num_train_epochs", 3.0)
    draft.imply("lr_scheduler_type", "linear")
    draft.imply("gradient_checkpointing", True)
    draft.imply("logging_steps", 10)
    draft.imply("save_steps", 500)
    draft.imply("data.train_on", "all", why="assistant_only_loss is off; rows of prompt and completion: assistant")


HUGGINGFACE = Dialect(
    name="hf", title="TRL", rules=RULES, finish=finish, gpus_follow_degree=True,
    markers=frozenset({"model_name_or_path", "dataset_name", "use_peft", "lora_r", "max_seq_length",
                       "lora_target_modules", "load_in_4bit", "assistant_only_loss", "dataset_text_field"}),
)  # fmt: skip
