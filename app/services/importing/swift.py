"""The flags of ms-swift 1 to 4, and those that how-to articles invented beside them, as rules.

Source: ms-swift's Command-line-parameters page of 3.x and 4.x, and the argument classes of 1.x and 2.x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.services.importing.draft import Draft
from app.services.importing.finding import Kind
from app.services.importing.pasted import Setting
from app.services.importing.rules import Dialect, Rule, choice, default, ignored, impossible, sets, wishes
from app.services.importing.trainer_arguments import TRAINER
from app.services.importing.values import dtype, is_off, mapping, number, numbers, one, text, texts, truth, whole

_VISION = "longfit trains language models on text."
_ADAPTERS = "LoRA and QLoRA are the adapters here."
_DATASET = "Rows are read once into a memory-mapped store, cached by content."
_RL = "longfit does supervised fine-tuning and continued pretraining."


def _many(value: Any) -> tuple[str, ...]:
    """``--dataset a#500 b``: words, not split at commas, because names of files may hold one."""
    return tuple(str(item) for item in value) if isinstance(value, (list, tuple)) else (text(value),)


def _rope(value: Any) -> Any:
    value = one(value)
    return mapping(value) if isinstance(value, Mapping) or str(value).strip().startswith("{") else text(value).lower()


def _model_type(draft: Draft, setting: Setting) -> None:
    """In ms-swift 1 and 2 it named the model; later it names a group of models."""
    draft.wish("model_type", text(setting.value), setting)


def _use_chat_template(draft: Draft, setting: Setting) -> None:
    kind: Kind = "default" if truth(setting.value) else "ignored"
    why = "Rows of messages go through the model's own chat template, rows of text through none."
    draft.tell(kind, [setting], why=why)


def _task_type(draft: Draft, setting: Setting) -> None:
    word = text(setting.value)
    kind: Kind = "default" if word == "causal_lm" else "impossible"
    draft.tell(kind, [setting], what="" if kind == "default" else f"{word} is not offered.", why=_RL)


def _lora_bias(draft: Draft, setting: Setting) -> None:
    if text(setting.value) == "none":
        draft.tell("default", [setting], why="Adapters have no biases.")
    else:
        draft.tell("impossible", [setting], what="Biases are not trained beside adapters.", why=_ADAPTERS)


def _init_weights(draft: Draft, setting: Setting) -> None:
    if str(one(setting.value)).lower() in ("true", "kaiming"):
        draft.tell("default", [setting], why="A is drawn at random, B begins at zero.")
    else:
        draft.tell("impossible", [setting], what="Adapters begin as LoRA's do: A at random, B at zero.", why=_ADAPTERS)


def four_bit_type(draft: Draft, setting: Setting) -> None:
    if text(setting.value).lower() == "nf4":
        draft.tell("default", [setting], why="The 4-bit base is NF4.")
    else:
        draft.tell("impossible", [setting], what="The 4-bit base is NF4.", why="It loses less than FP4 at equal size.")


_OVER_LENGTH = {"delete": "drop", "left": "truncate_left", "right": "truncate_right", "split": "split",
                "truncation_left": "truncate_left"}  # fmt: skip

PARALLEL: Mapping[str, Rule] = {
    "sequence_parallel_size": wishes("sequence_parallel", whole),
    "use_ulysses": wishes("ulysses", truth),
    "ulysses": wishes("ulysses", truth),
    "ulysses_num_chunks": wishes("ulysses_chunks", whole),
    "ulysses_chunks": wishes("ulysses_chunks", whole),
    "ulysses_sequence_parallel_size": wishes("ulysses_chunks", whole),
    "ulysses_use_fake_parallel": wishes("fake_parallel", truth),
    "use_fake_parallel": wishes("fake_parallel", truth),
    "use_ring_attn": wishes("ring", truth),
    "use_ring_attention": wishes("ring", truth),
    "ring_attn": wishes("ring", truth),
    "rope_scaling": wishes("rope", _rope),
    "max_model_len": wishes("max_model_len", whole),
}

LORA: Mapping[str, Rule] = {
    "lora_rank": wishes("adapter.rank", whole),
    "lora_alpha": wishes("adapter.alpha", number),
    "lora_dropout": wishes("adapter.dropout", number),
    "lora_dropout_p": wishes("adapter.dropout", number),
    "lora_dtype": wishes("adapter.adapter_dtype", dtype),
    "lora_bias": _lora_bias,
    "lora_bias_trainable": _lora_bias,
    "lora_target_modules": wishes("adapter.targets", texts),
    "target_modules": wishes("adapter.targets", texts),
    "target_regex": impossible("Targets are named: all-linear, or a list.", "--set lora.targets=q_proj,v_proj"),
    "target_parameters": impossible("Targets are linears of the decoder layers."),
    "modules_to_save": impossible("Embeddings and head stay frozen beside adapters."),
    "lora_modules_to_save": impossible("Embeddings and head stay frozen beside adapters."),
    "init_weights": _init_weights,
    "init_lora_weights": _init_weights,
    "use_rslora": wishes("adapter.rslora", truth),
    "use_dora": impossible("DoRA is not offered.", "LoRA of a higher rank: --set lora.rank=64"),
    "lorap_lr_ratio": impossible("Both adapter matrices share one learning rate."),
    "lora_lr_ratio": impossible("Both adapter matrices share one learning rate."),
    "lorap_emb_lr": impossible("Both adapter matrices share one learning rate."),
    "quant_method": wishes("quant_method", text),
    "quant_bits": wishes("quant_bits", whole),
    "quantization_bit": wishes("quant_bits", whole),
    "bnb_4bit_quant_type": four_bit_type,
    "bnb_4bit_use_double_quant": wishes("adapter.double_quant", truth),
    "bnb_4bit_compute_dtype": wishes("dtype", dtype),
    "bnb_4bit_comp_dtype": wishes("dtype", dtype),
    "bnb_4bit_quant_storage": ignored("The storage of the 4-bit base is chosen by itself."),
}

GALORE: Mapping[str, Rule] = {
    "use_galore": wishes("galore", truth),
    "galore_rank": wishes("galore.rank", whole),
    "galore_update_interval": wishes("galore.update_interval", whole),
    "galore_update_proj_gap": wishes("galore.update_interval", whole),
    "galore_scale": wishes("galore.scale", number),
    "galore_proj_type": wishes("galore.proj_type", text),
    "galore_target_modules": wishes("galore.targets", texts),
    "galore_optim_per_parameter": wishes("galore.layerwise", truth),
    "galore_with_embedding": impossible("Only matrices of the decoder layers would be projected."),
    "galore_quantization": impossible("Q-GaLore is not offered."),
    **{
        f"galore_{name}": ignored("It belongs to Q-GaLore, which is not offered.")
        for name in ("proj_quant", "proj_bits", "proj_group_size", "cos_threshold", "gamma_proj", "queue_size")
    },
}

ATTENTION: Mapping[str, Rule] = {
    "attn_impl": wishes("attention", text),
    "attn_implementation": wishes("attention", text),
    "use_flash_attn": wishes("attention_switch", lambda value: "auto" if truth(value) else "off"),
    "flash_attn_version": wishes("attention_version", text),
    "use_flash_attention_2": wishes("attention_switch", lambda value: "2" if truth(value) else "off"),
}

RULES: Mapping[str, Rule] = {
    **TRAINER,
    **PARALLEL,
    **LORA,
    **GALORE,
    **ATTENTION,
    "model": sets("model", text),
    "model_id_or_path": sets("model", text),
    "model_id": sets("model", text),
    "model_name_or_path": sets("model", text),
    "model_path": sets("model", text),
    "model_type": _model_type,
    "model_revision": impossible("The revision that lies in the cache is used.", "Name the folder of that revision."),
    "template": ignored("The model's own chat template is used."),
    "template_type": ignored("The model's own chat template is used."),
    "template_backend": ignored("The model's own chat template is used."),
    "train_type": wishes("method", text),
    "tuner_type": wishes("method", text),
    "sft_type": wishes("method", text),
    "tuner_backend": ignored("PEFT carries the adapters."),
    "torch_dtype": wishes("dtype", dtype),
    "dtype": wishes("dtype", dtype),
    "dataset": wishes("train_data", _many),
    "train_dataset": wishes("train_data", _many),
    "custom_train_dataset_path": wishes("train_data", _many),
    "val_dataset": wishes("eval_data", _many),
    "eval_dataset": wishes("eval_data", _many),
    "custom_val_dataset_path": wishes("eval_data", _many),
    "split_dataset_ratio": wishes("eval_fraction", number),
    "dataset_test_ratio": wishes("eval_fraction", number),
    "train_dataset_sample": wishes("max_samples", whole),
    "val_dataset_sample": impossible("The held-out set is used whole.", "Write the number behind its name: data#100."),
    "cached_dataset": impossible("longfit keeps its own cache of tokenised rows.", "Name the source: --dataset FILE"),
    "columns": impossible("Columns are recognised by their usual names.", "Rename them in the file."),
    "system": wishes("system", text),
    "max_length": sets("max_length", whole),
    "truncation_strategy": choice(
        "data.over_length", _OVER_LENGTH, other="Longer rows can be dropped, cut at either end, or split."
    ),
    "loss_scale": choice(
        "data.train_on", {"default": "assistant", "last_round": "last", "all": "all"},
        other="Every target token counts the same.", fix="Rows may say per message whether it is trained on.",
    ),
    "strict": lambda draft, setting: draft.put(
        "data.on_bad_row", "stop" if truth(setting.value) else "skip", setting
    ),
    "packing": wishes("packing", truth),
    "packing_length": wishes("packing_length", whole),
    "packing_max_seq_len": wishes("packing_length", whole),
    "packing_num_proc": ignored("Packing is a fraction of a second on lengths alone."),
    "packing_strategy": ignored("Packs are filled best-fit, the same from the same seed."),
    "packing_cache": ignored("Packing is a fraction of a second on lengths alone."),
    "padding_free": wishes("padding_free", truth),
    "padding_side": ignored("Rows are laid end to end, not padded."),
    "use_gradient_checkpointing": wishes("gradient_checkpointing", truth),
    "use_logits_to_keep": wishes("fused_loss", truth),
    "liger": wishes("liger", truth),
    "batch_size": sets("per_device_train_batch_size", whole),
    "eval_batch_size": sets("per_device_eval_batch_size", whole),
    "gradient_clip": sets("max_grad_norm", number),
    "use_hf": wishes("use_hf", truth),
    "use_chat_template": _use_chat_template,
    "task_type": _task_type,
    "streaming": default("Rows are read from disk as they are needed, without holding them in memory."),
    "lazy_tokenize": ignored(_DATASET),
    "load_from_cache_file": default("Tokenised rows are cached by content."),
    "dataset_num_proc": ignored(_DATASET),
    "preprocess_num_proc": ignored(_DATASET),
    "dataset_shuffle": default("Rows are shuffled by the seed, anew each epoch."),
    "train_dataloader_shuffle": default("Rows are shuffled by the seed, anew each epoch."),
    "val_dataset_shuffle": ignored("The order of held-out rows changes no number."),
    "shuffle_buffer_size": ignored("All rows are shuffled, not those of a buffer."),
    "interleave_prob": wishes("set_weights", numbers),
    "stopping_strategy": wishes("exhausted", lambda value: text(value).removesuffix("_exhausted")),
    "download_mode": ignored(_DATASET),
    "check_dataset_strategy": ignored("Bad rows are always reported with file and line."),
    "self_cognition_sample": impossible("Rows of that set are not made up here.", "Add the file to --dataset."),
    "model_name": ignored("It belongs to the self-cognition set."),
    "model_author": ignored("It belongs to the self-cognition set."),
    "response_prefix": ignored("It belongs to inference."),
    "agent_template": ignored("Tool calls go through the model's own chat template."),
    "tools_prompt": ignored("Tool calls go through the model's own chat template."),
    "max_epochs": sets("num_train_epochs", number),
    "logprobs": ignored("It belongs to inference."),
    "ckpt_dir": ignored("It belongs to inference."),
    "adapters": lambda draft, setting: draft.tell(
        "default" if is_off(setting.value) else "impossible", [setting],
        what="" if is_off(setting.value) else "Training does not begin from an adapter.",
        fix="" if is_off(setting.value) else "Merge it into the model first and name the merged folder.",
    ),
    "load_args": ignored("A preset says everything."),
    "add_version": ignored("Each run's folder has its time in its name."),
    "add_output_dir_suffix": ignored("Each run's folder has its time in its name."),
    "create_checkpoint_symlink": ignored("longfit infer RUN takes the newest checkpoint."),
    "check_model": ignored("Nothing is asked of a hub before training."),
    "ignore_args_error": ignored("What is not understood is told as a finding."),
    "device_map": ignored("Each GPU holds the model; what is shared is the row."),
    "max_memory": ignored("longfit plan says what each GPU holds."),
    "device_max_memory": ignored("longfit plan says what each GPU holds."),
    "gpu_memory_fraction": ignored("longfit plan says what each GPU holds."),
    "ddp_find_unused_parameters": TRAINER["ddp_find_unused_parameters"],
    "use_swift_lora": ignored("PEFT carries the adapters."),
    "router_aux_loss_coef": ignored("Dense models have no router."),
    "enable_dft_loss": impossible("The loss is plain cross entropy."),
    "enable_channel_loss": impossible("There is one loss for all rows.", "A held-out set for each channel."),
    "new_special_tokens": impossible("The vocabulary stays as it is."),
    "external_plugins": impossible("No code of others is loaded."),
    "custom_register_path": impossible("No code of others is loaded.", "Name files as data and a folder as model."),
    "custom_dataset_info": impossible("Sets are named by file or hub id.", "--dataset FILE"),
    "model_kwargs": ignored("The model's own config.json rules."),
    "local_repo_path": ignored("Models need no code of their own here."),
    "trust_remote_code": impossible("No code of a model's author is run.", "Supported families need none."),
    "hub_token": ignored("Nothing is uploaded."),
    "use_ray": ignored("longfit starts its processes by itself."),
    "device_groups": ignored("longfit starts its processes by itself."),
    "config": lambda draft, setting: draft.tell(
        "impossible", [setting], what="The settings stand in a file.", fix=f"longfit import {text(setting.value)}"
    ),
    "zero_hpz_partition_size": impossible("Weights are not sharded within nodes."),
    "deepspeed_autotp_size": impossible("Tensor parallelism is not offered.", "sequence_parallel divides activations."),
    "deepspeed_config_path": wishes("deepspeed", lambda value: value),
    "neftune_alpha": TRAINER["neftune_noise_alpha"],
    "neftune_noise_alpha": TRAINER["neftune_noise_alpha"],
    "only_save_model": TRAINER["save_only_model"],
    "test_oom_error": ignored("longfit plan says beforehand whether it fits."),
    "acc_strategy": ignored("metrics.jsonl has the loss."),
    "acc_steps": ignored("metrics.jsonl has the loss."),
    "perf_log": default("metrics.jsonl has tokens per second and memory in every row."),
    "freeze_parameters_ratio": impossible("Full fine-tuning trains everything.", "--set lora.rank=64"),
    "freeze_parameters": impossible("Full fine-tuning trains everything.", "--set lora.rank=64"),
    "freeze_parameters_regex": impossible("Full fine-tuning trains everything.", "--set lora.rank=64"),
    "trainable_parameters": impossible("Full fine-tuning trains everything."),
    "trainable_parameters_regex": impossible("Full fine-tuning trains everything."),
    "lisa_activated_layers": impossible("LISA is not offered."),
    "lisa_step_interval": ignored("It belongs to LISA, which is not offered."),
    "num_labels": impossible("Classification heads are not offered."),
    **{f"freeze_{part}": ignored(_VISION) for part in ("llm", "vit", "aligner")},
    **{name: ignored(_VISION) for name in ("max_pixels", "vit_lr", "aligner_lr", "norm_bbox",
                                           "vit_gradient_checkpointing")},
    **{
        name: ignored("It belongs to inference.")
        for name in ("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "num_beams", "stream",
                     "stop_words", "infer_backend", "vllm_max_model_len", "merge_lora", "eval_human", "do_sample")
    },
    **{name: impossible(_RL) for name in ("rlhf_type", "beta", "reward_funcs", "ref_model", "rlhf_beta")},
}  # fmt: skip


def finish(draft: Draft) -> None:
    """What ms-swift 4 does by itself. Source: its arguments page; save_steps 500 is Transformers' default."""
    method = draft.method
    if method != "full":
        for knob, value in {"rank": 8, "alpha": 32, "dropout": 0.05}.items():
            draft.imply(f"{method}.{knob}", value)
    draft.imply("learning_rate", 1e-5 if method == "full" else 1e-4)
    draft.imply("gradient_checkpointing", True)
    draft.imply("adam_beta2", 0.95)
    draft.imply("weight_decay", 0.1)
    draft.imply("num_train_epochs", 3.0)
    draft.imply("logging_steps", 5)
    draft.imply("save_steps", 500)
    draft.imply("data.over_length", "drop")
    draft.imply("data.on_bad_row", "skip")
    batch, world = int(draft.values.get("per_device_train_batch_size", 1)), draft.num_gpus
    accumulation = math.ceil(16 / (batch * world))
    why = f"16 rows a step over {batch} a micro-batch and {world} processes, sequence parallelism not counted"
    draft.imply("gradient_accumulation_steps", accumulation, why=why)
    model = draft.model
    if model is not None and "max_length" not in draft.decided:
        draft.imply(
            "max_length", model.max_position_embeddings,
            why="without --max_length rows may be as long as the model can read; memory is planned for that",
        )  # fmt: skip


SWIFT = Dialect(
    name="swift", title="ms-swift", rules=RULES, finish=finish, hub="ms",
    markers=frozenset({"train_type", "tuner_type", "sft_type", "model_id_or_path", "quant_bits", "attn_impl",
                       "ulysses_num_chunks", "use_ulysses", "galore_update_proj_gap", "truncation_strategy",
                       "split_dataset_ratio", "target_modules", "lora_rank", "sequence_parallel_size", "dataset"}),
)  # fmt: skip
