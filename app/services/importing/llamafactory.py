"""The keys of a LLaMA-Factory YAML (or of llamafactory-cli flags) as rules.

Source: src/llamafactory/hparams/{data,finetuning,model}_args.py and examples/train_lora of LLaMA-Factory 0.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.services.importing.draft import Draft
from app.services.importing.pasted import Setting
from app.services.importing.rules import Dialect, Rule, default, ignored, impossible, sets, wishes
from app.services.importing.swift import GALORE, LORA
from app.services.importing.trainer_arguments import TRAINER
from app.services.importing.values import dtype, is_off, numbers, one, text, texts, truth, whole

_TEXT_ONLY = "longfit trains language models on text."
_CACHE = "Rows are read once into a memory-mapped store, cached by content."
_RL = "longfit does supervised fine-tuning and continued pretraining."


def _stage(draft: Draft, setting: Setting) -> None:
    word = text(setting.value).lower()
    if word == "sft":
        draft.tell("default", [setting], why="Supervised fine-tuning is what longfit does.")
    elif word == "pt":
        draft.put("data.train_on", "all", setting, why="Continued pretraining: every token is a target.")
    else:
        draft.tell("impossible", [setting], what=f"The stage {word} is not offered.", why=_RL)


def _flash_attn(value: Any) -> str:
    word = str(one(value)).lower()
    return {"fa2": "2", "fa3": "3", "true": "auto", "disabled": "eager", "false": "off"}.get(word, word)


def _disable_checkpointing(draft: Draft, setting: Setting) -> None:
    draft.wish("gradient_checkpointing", not truth(setting.value), setting)


def _template(draft: Draft, setting: Setting) -> None:
    draft.tell("ignored", [setting], why="The model's own chat template is used.")


def _neat_packing(draft: Draft, setting: Setting) -> None:
    if truth(setting.value):
        draft.wish("packing", True, setting)
        draft.wish("isolated_packing", True, setting)
    else:
        draft.tell("default", [setting], why="Packed samples are always isolated from each other here.")


def _train_on_prompt(draft: Draft, setting: Setting) -> None:
    draft.put("data.train_on", "all" if truth(setting.value) else "assistant", setting)


def _mask_history(draft: Draft, setting: Setting) -> None:
    draft.put("data.train_on", "last" if truth(setting.value) else "assistant", setting)


def _adapter(draft: Draft, setting: Setting) -> None:
    if is_off(setting.value):
        draft.tell("default", [setting], why="Training begins from the model.")
    else:
        draft.tell(
            "impossible", [setting], what="Training does not begin from an adapter.",
            fix="Merge it into the model first and name the merged folder.",
        )  # fmt: skip


RULES: Mapping[str, Rule] = {
    **TRAINER,
    **LORA,
    **GALORE,
    "model_name_or_path": sets("model", text),
    "adapter_name_or_path": _adapter,
    "model_revision": impossible("The revision in the cache is used.", off=lambda v: is_off(v) or v == "main"),
    "trust_remote_code": ignored("Supported families need no code of the model's author."),
    "stage": _stage,
    "finetuning_type": wishes("method", text),
    "lora_target": wishes("adapter.targets", texts),
    "additional_target": impossible("Embeddings and head stay frozen beside adapters."),
    "loraplus_lr_ratio": impossible("Both adapter matrices share one learning rate."),
    "loraplus_lr_embedding": ignored("It belongs to LoRA+, which is not offered."),
    "pissa_init": impossible("Adapters begin as LoRA's do: A at random, B at zero."),
    "pissa_iter": ignored("It belongs to PiSSA, which is not offered."),
    "pissa_convert": ignored("It belongs to PiSSA, which is not offered."),
    "create_new_adapter": ignored("A new adapter is always made."),
    "quantization_method": wishes("quant_method", text),
    "quantization_type": LORA["bnb_4bit_quant_type"],
    "double_quantization": wishes("adapter.double_quant", truth),
    "quantization_device_map": ignored("Each GPU holds the model; what is shared is the row."),
    "pure_bf16": wishes("pure_bf16", truth),
    "dataset": wishes("train_data", texts),
    "eval_dataset": wishes("eval_data", texts),
    "dataset_dir": wishes("dataset_dir", text),
    "media_dir": ignored(_TEXT_ONLY),
    "template": _template,
    "default_system": wishes("system", text),
    "tool_format": ignored("Tool calls go through the model's own chat template."),
    "enable_thinking": ignored("The chat template is used as it is for each row."),
    "cutoff_len": sets("max_length", whole),
    "max_samples": wishes("max_samples", whole),
    "val_size": wishes("eval_fraction", lambda value: float(one(value))),
    "train_on_prompt": _train_on_prompt,
    "mask_history": _mask_history,
    "packing": wishes("packing", truth),
    "neat_packing": _neat_packing,
    "mix_strategy": wishes("exhausted", lambda value: "all" if text(value) == "interleave_over" else "first"),
    "interleave_probs": wishes("set_weights", numbers),
    "streaming": default("Rows are read from disk as they are needed, without holding them in memory."),
    "buffer_size": ignored("All rows are shuffled, not those of a buffer."),
    "overwrite_cache": ignored(_CACHE),
    "tokenized_path": ignored(_CACHE),
    "preprocessing_num_workers": ignored(_CACHE),
    "preprocessing_batch_size": ignored(_CACHE),
    "ignore_pad_token_for_loss": default("Padding is never a target."),
    "eval_on_each_dataset": impossible("Held-out sets are evaluated together."),
    "flash_attn": wishes("attention", _flash_attn),
    "shift_attn": impossible("Attention is exact and full.", "sequence_parallel, or fake_parallel on one GPU"),
    "enable_liger_kernel": wishes("liger", truth),
    "use_unsloth": impossible("longfit has kernels of its own; `longfit plan` recommends."),
    "use_unsloth_gc": wishes("checkpoint_offload", truth),
    "use_reentrant_gc": ignored("Layers are recomputed by one exact method, without re-entry."),
    "disable_gradient_checkpointing": _disable_checkpointing,
    "upcast_layernorm": ignored("Norms are computed in float32 and given in the dtype of the preset."),
    "upcast_lmhead_output": default("The loss is formed in float32."),
    "rope_scaling": wishes("rope", lambda value: value if isinstance(value, Mapping) else text(value)),
    "sequence_parallel_size": wishes("sequence_parallel", whole),
    "context_parallel_size": wishes("sequence_parallel", whole),
    "infer_dtype": ignored("It belongs to inference."),
    "compute_dtype": wishes("dtype", dtype),
    "cache_dir": ignored("Models are found in the hub cache."),
    "use_fast_tokenizer": default("Tokenizers are the fast ones."),
    "resize_vocab": impossible("The vocabulary stays as it is."),
    "low_cpu_mem_usage": default("Weights are loaded one by one."),
    "plot_loss": default("The loss is drawn live by `longfit tui` and `longfit web`."),
    "compute_accuracy": ignored("metrics.jsonl has the loss."),
    "include_effective_tokens_per_second": default("metrics.jsonl has tokens per second in every row."),
    "print_param_status": ignored("longfit plan says what is trained."),
    "ddp_timeout": ignored("longfit starts and joins its processes by itself."),
    "ray_run_name": ignored("longfit starts its processes by itself."),
    "ray_num_workers": ignored("longfit starts its processes by itself."),
    "galore_target": GALORE["galore_target_modules"],
    "galore_layerwise": GALORE["galore_optim_per_parameter"],
    **{name: impossible(_RL) for name in ("pref_beta", "pref_loss", "ref_model", "reward_model", "simpo_gamma")},
    **{f"use_{name}": impossible("The optimizer is AdamW.") for name in ("apollo", "badam", "adam_mini", "muon")},
    "use_llama_pro": impossible("No layers are added.", "--set lora.rank=64"),
    "use_swanlab": impossible("Metrics are not sent to SwanLab.", "metrics.jsonl, tensorboard, trackio, wandb"),
    "freeze_trainable_layers": impossible("Layers are not frozen one by one.", "--set lora.rank=64"),
    "image_max_pixels": ignored(_TEXT_ONLY),
    "video_max_pixels": ignored(_TEXT_ONLY),
}  # fmt: skip


def finish(draft: Draft) -> None:
    """What LLaMA-Factory does by itself: its dataclasses, and Transformers' TrainingArguments below them."""
    isolated = draft.take("isolated_packing")
    if draft.values.get("packing") and isolated is None:
        draft.tell(
            "translated", (), what="Packed samples do not see each other here; there that takes neat_packing.",
            keys={"packing": True},
        )  # fmt: skip
    folder = draft.take("dataset_dir")
    if folder is not None:
        draft.tell(
            "ignored", [folder.setting], why="Data is named by file; what a name means stands in its dataset_info.json."
        )
    method, pure = draft.method, draft.take("pure_bf16")
    if pure is not None:
        draft.put("dtype", "bfloat16", pure.setting)
        if pure.value and method != "full":
            draft.values[f"{method}.adapter_dtype"] = "bfloat16"
    if method != "full":
        draft.imply(f"{method}.rank", 8)
        draft.imply(f"{method}.alpha", 2 * int(draft.values.get(f"{method}.rank", 8)))
    draft.imply("max_length", 2048)
    draft.imply("dtype", "float32", why="neither bf16 nor fp16 is switched on")
    draft.imply("per_device_train_batch_size", 8)
    draft.imply("learning_rate", 5e-5)
    draft.imply("num_train_epochs", 3.0)
    draft.imply("lr_scheduler_type", "linear")
    draft.imply("gradient_checkpointing", True)
    draft.imply("logging_steps", 500)
    draft.imply("save_steps", 500)
    draft.imply("data.over_length", "truncate_right")


LLAMAFACTORY = Dialect(
    name="llamafactory", title="LLaMA-Factory", rules=RULES, finish=finish, has_flags=False, gpus_follow_degree=True,
    markers=frozenset({"finetuning_type", "cutoff_len", "lora_target", "dataset_dir", "stage", "template",
                       "enable_liger_kernel", "flash_attn", "quantization_bit", "overwrite_cache", "val_size",
                       "preprocessing_num_workers", "neat_packing", "plot_loss", "disable_gradient_checkpointing"}),
)  # fmt: skip
