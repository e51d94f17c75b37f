"""Hugging Face's TrainingArguments as rules: ms-swift, LLaMA-Factory and TRL take them all beside their own."""

from __future__ import annotations

from collections.abc import Mapping

from app.services.importing.draft import Draft
from app.services.importing.pasted import Setting
from app.services.importing.rules import (
    Rule,
    checkpointing,
    default,
    ignored,
    impossible,
    optimizer,
    report_to,
    scheduler,
    sets,
    steps,
    wishes,
)
from app.services.importing.values import is_off, number, one, text, truth, whole

_LOADER = "Rows are tokenised once into a memory-mapped store; there is no data loader to tune."
_HUB = "Nothing is uploaded; a checkpoint is a folder in PEFT or Hugging Face layout."
_SHOWN = "Logs, progress and memory are always kept in the run's folder."
_PROCESSES = "longfit starts and joins its processes by itself."
_AVERAGED = "The loss is summed over all target tokens of a step, on all ranks, and divided by their number."


def _dtype_switch(dtype: str) -> Rule:
    def rule(draft: Draft, setting: Setting) -> None:
        if one(setting.value) == "auto" or truth(setting.value):
            draft.wish("dtype", dtype, setting)
        else:
            draft.tell("default", [setting], why=f"{dtype} is not switched on by it.")

    return rule


def _output_dir(draft: Draft, setting: Setting) -> None:
    draft.runs_dir = text(setting.value)
    draft.tell(
        "translated", [setting], what=f"--runs-dir {draft.runs_dir} of `longfit train`.",
        why="Each run gets a folder of its own below it; longfit runs --runs-dir lists them.",
    )  # fmt: skip


def _resume(draft: Draft, setting: Setting) -> None:
    if is_off(setting.value):
        draft.tell("default", [setting], why="It is off here too.")
    else:
        draft.tell(
            "impossible", [setting], what="A run of another tool cannot be gone on with.",
            why="Optimizer states and the position in the data are laid out differently.",
            fix="Runs of longfit: longfit resume RUN.",
        )  # fmt: skip


TRAINER: Mapping[str, Rule] = {
    "output_dir": _output_dir,
    "overwrite_output_dir": ignored("Each run gets a folder of its own; nothing is overwritten."),
    "do_train": ignored("longfit train trains."),
    "do_eval": ignored("Evaluation follows from data.eval and eval_steps."),
    "per_device_train_batch_size": sets("per_device_train_batch_size", whole),
    "per_device_eval_batch_size": sets("per_device_eval_batch_size", whole),
    "gradient_accumulation_steps": wishes("accumulation", lambda value: 0 if one(value) == "auto" else whole(value)),
    "num_train_epochs": sets("num_train_epochs", number),
    "max_steps": sets("max_steps", whole),
    "learning_rate": sets("learning_rate", number),
    "lr_scheduler_type": scheduler,
    "lr_scheduler_kwargs": impossible("Each schedule has one form, stated in core/train/schedule.py."),
    "warmup_ratio": sets("warmup_ratio", number),
    "warmup_steps": sets("warmup_steps", whole),
    "weight_decay": sets("weight_decay", number),
    "max_grad_norm": sets("max_grad_norm", number),
    "optim": optimizer,
    "optim_args": wishes("galore.optim_args", text),
    "optim_target_modules": wishes("galore.targets", text),
    "adam_beta1": sets("adam_beta1", number),
    "adam_beta2": sets("adam_beta2", number),
    "adam_epsilon": sets("adam_epsilon", number),
    "seed": sets("seed", whole),
    "data_seed": wishes("data_seed", whole),
    "full_determinism": sets("deterministic", truth),
    "logging_steps": sets("logging_steps", whole),
    "logging_first_step": default("The first step is always logged."),
    "logging_dir": ignored("Logs lie in the run's folder."),
    "logging_strategy": ignored("logging_steps says how often."),
    "log_level": ignored(_SHOWN),
    "report_to": report_to,
    "run_name": wishes("name", text),
    "eval_steps": steps("eval_steps"),
    "eval_strategy": wishes("eval_strategy", lambda value: text(value).lower()),
    "evaluation_strategy": wishes("eval_strategy", lambda value: text(value).lower()),
    "eval_on_start": default("The first evaluation comes before the first step."),
    "save_steps": steps("save_steps"),
    "save_strategy": wishes("save_strategy", lambda value: text(value).lower()),
    "save_total_limit": sets("save_total_limit", whole),
    "save_only_model": ignored("Checkpoints hold what a bit-exact resume needs; adapters' states are small."),
    "save_safetensors": default("Weights are saved as safetensors."),
    "save_on_each_node": ignored("Checkpoints go to one folder."),
    "load_best_model_at_end": sets("keep_best", truth, what="The best checkpoint is kept on disk."),
    "metric_for_best_model": ignored("The best checkpoint is the one with the lowest evaluation loss."),
    "greater_is_better": ignored("The best checkpoint is the one with the lowest evaluation loss."),
    "resume_from_checkpoint": _resume,
    "ignore_data_skip": ignored("A resumed run goes on at the next sample."),
    "bf16": _dtype_switch("bfloat16"),
    "fp16": _dtype_switch("float16"),
    "tf32": ignored("Matrices are multiplied in the dtype of the preset."),
    "bf16_full_eval": ignored("Evaluation uses the dtype of the training."),
    "gradient_checkpointing": checkpointing,
    "gradient_checkpointing_kwargs": ignored("Layers are recomputed by one exact method, without re-entry."),
    "use_liger_kernel": wishes("liger", truth),
    "liger_kernel_config": wishes("liger_config", lambda value: value),
    "neftune_noise_alpha": impossible("Embeddings are trained without added noise."),
    "label_smoothing_factor": impossible("The loss is plain cross entropy."),
    "group_by_length": impossible(
        "Rows are shuffled by the seed alone.", "packing: true fills rows of any length without padding."
    ),
    "average_tokens_across_devices": default(_AVERAGED),
    "dataloader_num_workers": ignored(_LOADER),
    "dataloader_pin_memory": ignored(_LOADER),
    "dataloader_persistent_workers": ignored(_LOADER),
    "dataloader_prefetch_factor": ignored(_LOADER),
    "dataloader_drop_last": impossible("Every sample is used exactly once an epoch; the last batch is kept."),
    "remove_unused_columns": ignored("Only the columns of the recognised shape are read."),
    "deepspeed": wishes("deepspeed", lambda value: value),
    "fsdp": wishes("fsdp", lambda value: value),
    "fsdp_config": wishes("fsdp_config", lambda value: value),
    "accelerator_config": ignored(_PROCESSES),
    "local_rank": ignored(_PROCESSES),
    "ddp_backend": ignored("NCCL on GPUs, gloo on CPUs."),
    "ddp_timeout": ignored(_PROCESSES),
    "ddp_find_unused_parameters": ignored("Gradients are summed over the ranks once a step, whoever has them."),
    "ddp_bucket_cap_mb": ignored("Gradients are summed over the ranks once a step."),
    "torch_compile": impossible("The model's code runs as it is.", off=lambda v: is_off(v) or one(v) == "auto"),
    "torch_compile_backend": ignored("The model's code runs as it is."),
    "torch_empty_cache_steps": ignored("The plan leaves room for fragmentation instead."),
    "auto_find_batch_size": impossible(
        "A batch size that changes by itself changes the training.", "longfit fit PRESET finds the largest that fits."
    ),
    "prediction_loss_only": default("Evaluation computes the loss and nothing else."),
    "predict_with_generate": impossible("Evaluation computes the loss.", "longfit infer RUN PROMPT shows answers."),
    "include_num_input_tokens_seen": default("metrics.jsonl counts tokens in every row."),
    "include_tokens_per_second": default("metrics.jsonl has tokens per second in every row."),
    "disable_tqdm": ignored(_SHOWN),
    "push_to_hub": impossible(_HUB),
    "hub_model_id": ignored(_HUB),
    "hub_private_repo": ignored(_HUB),
    "hub_strategy": ignored(_HUB),
    "hub_token": ignored(_HUB),
    "use_cpu": wishes("use_cpu", truth),
    "no_cuda": wishes("use_cpu", truth),
}
