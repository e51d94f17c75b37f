"""What a preset is called elsewhere: one function a tool, from effective values to that tool's settings.

Called by exported.py, which finds out by itself what did not survive; nothing here needs to say what is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]  # of effective_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One setting of the other tool, and the preset keys that it carries."""

    name: str
    value: Any
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    title: str
    items: Callable[[Values], list[Item]]
    is_command: bool = False  # --flags instead of a YAML
    note: Callable[[Values], Sequence[str]] = lambda values: ()  # comment lines


_OVER_LENGTH = {"drop": "delete", "truncate_left": "left", "truncate_right": "right", "split": "split"}
_TRAIN_ON = {"assistant": "default", "last": "last_round", "all": "all"}
_SCHEDULER = {"constant": "constant_with_warmup", "wsd": "warmup_stable_decay"}
_ATTENTION = {"2": "flash_attention_2", "3": "flash_attention_3", "4": "flash_attention_4", "sdpa": "sdpa"}
# Transformers' names for what is not at the default that both share
_SHARED_DEFAULTS = {
    "max_steps": -1, "warmup_steps": 0, "max_grad_norm": 1.0, "adam_beta1": 0.9, "adam_epsilon": 1e-8, "seed": 42,
    "per_device_eval_batch_size": 1, "deterministic": False, "keep_best": False,
}  # fmt: skip
_NAMES = {"deterministic": "full_determinism", "keep_best": "load_best_model_at_end"}


def _item(name: str, value: Any, *keys: str) -> Item:
    return Item(name=name, value=value, keys=keys or (name,))


def _method(values: Values) -> str:
    return next((name for name in ("qlora", "lora") if values.get(name)), "full")


def _degree(values: Values) -> int:
    return max(
        int(values["sequence_parallel"]), int(values.get("ulysses.degree", 1)) * int(values.get("ring.degree", 1))
    )


def _attention(values: Values, packed: str = "flash_attention_2") -> str | None:
    """With packing these tools isolate samples in a flash kernel only, so one is named."""
    version = str(values.get("flash_attention.version", "auto"))
    return _ATTENTION.get(version) or (packed if values.get("packing") else None)


def _on(values: Values, key: str, name: str, value: Any = True) -> list[Item]:
    return [_item(name, value, key)] if values.get(key) else []


def _training(values: Values, **renamed: str) -> list[Item]:
    """What Transformers' Trainer takes; ``renamed``: our key -> another name."""
    name = {**_NAMES, **renamed}
    items = [
        _item(name.get(key, key), values[key], key)
        for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "learning_rate")
    ]
    schedule = values["lr_scheduler_type"]
    items.append(_item(name.get("lr_scheduler_type", "lr_scheduler_type"), _SCHEDULER.get(schedule, schedule),
                       "lr_scheduler_type"))  # fmt: skip
    items += [_item(name.get(key, key), values[key], key) for key in ("warmup_ratio", "weight_decay", "adam_beta2")]
    items.append(_item(name.get("optim", "optim"), values["optim"], "optim"))
    items += [
        _item(name.get(key, key), values[key], key) for key, same in _SHARED_DEFAULTS.items() if values[key] != same
    ]
    items.append(_item("logging_steps", values["logging_steps"]))
    steps = values["save_steps"]
    items.append(_item("save_steps", steps) if steps else _item("save_strategy", "no", "save_steps"))
    items.append(_item("save_total_limit", values["save_total_limit"]))
    if values["eval_steps"]:
        items += [_item("eval_strategy", "steps", "eval_steps"), _item("eval_steps", values["eval_steps"])]
    items.append(_item("report_to", list(values["report_to"]) or "none", "report_to"))
    return items


def _adapter(values: Values, names: Mapping[str, str]) -> list[Item]:
    method = _method(values)
    if method == "full":
        return []
    return [_item(name, values[f"{method}.{knob}"], f"{method}.{knob}") for knob, name in names.items()]


def _swift(values: Values) -> list[Item]:
    method = _method(values)
    items = [
        _item("model", values["model"]),
        _item("dataset", [entry.removeprefix("ms::") for entry in values["data.train"]], "data.train"),
    ]
    if values["data.weights"]:
        shares = [values["data.weights"].get(entry, 0) for entry in values["data.train"]]
        items.append(_item("interleave_prob", shares, "data.weights"))
    if values["data.eval"]:
        items.append(_item("val_dataset", [e.removeprefix("ms::") for e in values["data.eval"]], "data.eval"))
    items += _on(values, "data.eval_fraction", "split_dataset_ratio", values["data.eval_fraction"])
    items += _on(values, "data.system", "system", values["data.system"])
    items += [
        _item("max_length", values["max_length"]),
        _item("truncation_strategy", _OVER_LENGTH[values["data.over_length"]], "data.over_length"),
        _item("loss_scale", _TRAIN_ON[values["data.train_on"]], "data.train_on"),
        _item("strict", values["data.on_bad_row"] == "stop", "data.on_bad_row"),
        _item("torch_dtype", values["dtype"], "dtype"),
        _item("tuner_type", "full" if method == "full" else "lora", method),
    ]
    if method == "qlora":
        items += [_item("quant_method", "bnb", "qlora"), _item("quant_bits", 4, "qlora"),
                  _item("bnb_4bit_use_double_quant", values["qlora.double_quant"], "qlora.double_quant")]  # fmt: skip
    items += _adapter(values, {"rank": "lora_rank", "alpha": "lora_alpha", "dropout": "lora_dropout"})
    if method != "full":
        items.append(_item("target_modules", values[f"{method}.targets"].split(","), f"{method}.targets"))
        items.append(_item("lora_dtype", values[f"{method}.adapter_dtype"], f"{method}.adapter_dtype"))
    if values.get("galore"):
        items.append(_item("use_galore", True, "galore"))
        items += [_item(name, values[f"galore.{knob}"], f"galore.{knob}")
                  for knob, name in (("rank", "galore_rank"), ("update_interval", "galore_update_proj_gap"),
                                     ("scale", "galore_scale")) if f"galore.{knob}" in values]  # fmt: skip
    items += _on(values, "packing", "packing")
    if values.get("packing.length"):
        items.append(_item("packing_length", values["packing.length"], "packing.length"))
    items += [_item("attn_impl", found, "flash_attention")] if (found := _attention(values, "flash_attn")) else []
    if _degree(values) > 1:
        items.append(_item("sequence_parallel_size", _degree(values), "sequence_parallel"))
    items.append(_item("gradient_checkpointing", values["gradient_checkpointing"]))
    items += _on(values, "liger", "use_liger_kernel")
    items += _on(values, "fsdp", "deepspeed", "zero3")
    items += _on(values, "rope_scaling", "rope_scaling", json.dumps(values["rope_scaling"]))
    return items + _training(values)


def _llamafactory(values: Values) -> list[Item]:
    method = _method(values)
    items = [
        _item("model_name_or_path", values["model"], "model"),
        _item("stage", "sft"), _item("do_train", True),
        _item("finetuning_type", "full" if method == "full" else "lora", method),
        *_adapter(values, {"rank": "lora_rank", "alpha": "lora_alpha", "dropout": "lora_dropout"}),
    ]  # fmt: skip
    if method != "full":
        targets = values[f"{method}.targets"]
        items.append(_item("lora_target", "all" if targets == "all-linear" else targets, f"{method}.targets"))
    if method == "qlora":
        items += [_item("quantization_method", "bnb", "qlora"), _item("quantization_bit", 4, "qlora"),
                  _item("double_quantization", values["qlora.double_quant"], "qlora.double_quant")]  # fmt: skip
    items.append(_item("dataset", ",".join(_unsampled(values["data.train"])), "data.train"))
    items += _on(values, "data.eval", "eval_dataset", ",".join(_unsampled(values["data.eval"])))
    items += _on(values, "data.eval_fraction", "val_size", values["data.eval_fraction"])
    items += _on(values, "data.system", "default_system", values["data.system"])
    items.append(_item("cutoff_len", values["max_length"], "max_length"))
    items += [_item("train_on_prompt", True, "data.train_on")] if values["data.train_on"] == "all" else []
    items += [_item("mask_history", True, "data.train_on")] if values["data.train_on"] == "last" else []
    items += _on(values, "packing", "neat_packing")
    items += [_item("flash_attn", {"flash_attention_2": "fa2", "flash_attention_3": "fa3"}.get(found, found),
                    "flash_attention")] if (found := _attention(values)) else []  # fmt: skip
    items += _on(values, "liger", "enable_liger_kernel")
    items.append(
        _item("disable_gradient_checkpointing", not values["gradient_checkpointing"], "gradient_checkpointing")
    )
    is_pure = values["dtype"] == "bfloat16" == values.get(f"{method}.adapter_dtype")
    items += [_item("pure_bf16", True, "dtype", f"{method}.adapter_dtype")] if is_pure else _precision(values)
    return items + _training(values)


def _unsampled(entries: Sequence[str]) -> list[str]:
    """Only ms-swift samples by `#500` behind a name."""
    return [re.sub(r"#\d+%?$", "", entry) for entry in entries]


def _precision(values: Values) -> list[Item]:
    switch = {"bfloat16": "bf16", "float16": "fp16"}.get(values["dtype"])
    return [_item(switch, True, "dtype")] if switch else []


def _axolotl(values: Values) -> list[Item]:
    method, fraction = _method(values), values["data.eval_fraction"]
    kind = {"alpaca": "alpaca", "sharegpt": "sharegpt", "text": "completion"}.get(values["data.shape"], "chat_template")
    items = [
        _item("base_model", values["model"], "model"),
        _item("datasets", [_axolotl_set(entry, kind) for entry in _unsampled(values["data.train"])], "data.train"),
    ]
    if values["data.eval"]:
        items.append(
            _item("test_datasets", [_axolotl_set(e, kind) for e in _unsampled(values["data.eval"])], "data.eval")
        )
    items += [_item("val_set_size", fraction, "data.eval_fraction")] if fraction else []
    items += _on(values, "data.system", "default_system_message", values["data.system"])
    items.append(_item("sequence_len", values["max_length"], "max_length"))
    policy = {"drop": "drop", "truncate_right": "truncate"}.get(values["data.over_length"])
    items += [_item("excess_length_strategy", policy, "data.over_length")] if policy else []
    items += [_item("train_on_inputs", True, "data.train_on")] if values["data.train_on"] == "all" else []
    items += [_item("adapter", method, method)] if method != "full" else []
    items += [_item("load_in_4bit", True, "qlora")] if method == "qlora" else []
    items += _adapter(values, {"rank": "lora_r", "alpha": "lora_alpha", "dropout": "lora_dropout"})
    if method != "full":
        targets = values[f"{method}.targets"]
        every = targets == "all-linear"
        items.append(_item("lora_target_linear", True, f"{method}.targets") if every
                     else _item("lora_target_modules", targets.split(","), f"{method}.targets"))  # fmt: skip
    if values.get(f"{method}.adapter_dtype", "float32") != "float32":
        items.append(_item("peft_autocast_adapter_dtype", False, f"{method}.adapter_dtype"))
    items += _precision(values) or [_item("float32", True, "dtype")]
    items += _on(values, "packing", "sample_packing")
    items += [_item("attn_implementation", found, "flash_attention")] if (found := _attention(values)) else []
    plugins = [
        *(["axolotl.integrations.liger.LigerPlugin"] if values.get("liger") else []),
        *(["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"] if values.get("fused_loss") else []),
    ]
    items += [_item("plugins", plugins, "liger", "fused_loss")] if plugins else []
    items += _on(values, "tiled_mlp", "tiled_mlp")
    items += [_item("context_parallel_size", _degree(values), "sequence_parallel")] if _degree(values) > 1 else []
    items.append(_item("gradient_checkpointing", values["gradient_checkpointing"]))
    renamed = {"per_device_train_batch_size": "micro_batch_size", "num_train_epochs": "num_epochs",
               "lr_scheduler_type": "lr_scheduler", "optim": "optimizer",
               "per_device_eval_batch_size": "eval_batch_size"}  # fmt: skip
    return items + _training(values, **renamed)


def _axolotl_set(entry: str, kind: str) -> dict[str, str]:
    return {"path": entry.removeprefix("hf::"), "type": kind}


def _huggingface(values: Values) -> list[Item]:
    method = _method(values)
    sets = [
        {"path": entry.removeprefix("hf::")} if "::" in entry else {"path": "json", "data_files": entry}
        for entry in _unsampled(values["data.train"])
    ]
    items = [_item("model_name_or_path", values["model"], "model"), _item("datasets", sets, "data.train")]
    items += _on(values, "data.eval_fraction", "test_split_size", values["data.eval_fraction"])
    items += [
        _item("max_length", values["max_length"]),
        _item("assistant_only_loss", values["data.train_on"] == "assistant", "data.train_on"),
        _item("use_peft", method != "full", method),
        *_adapter(values, {"rank": "lora_r", "alpha": "lora_alpha", "dropout": "lora_dropout"}),
    ]
    if method != "full":
        targets = values[f"{method}.targets"].split(",")
        items.append(_item("lora_target_modules", targets if len(targets) > 1 else targets[0], f"{method}.targets"))
    if method == "qlora":
        items += [_item("load_in_4bit", True, "qlora"),
                  _item("use_bnb_nested_quant", values["qlora.double_quant"], "qlora.double_quant")]  # fmt: skip
    items.append(_item("dtype", values["dtype"]))
    policy = {"truncate_right": "keep_start", "truncate_left": "keep_end"}.get(values["data.over_length"])
    items += [_item("truncation_mode", policy, "data.over_length")] if policy else []
    items += _on(values, "packing", "packing")
    items += [_item("attn_implementation", found, "flash_attention")] if (found := _attention(values)) else []
    items += _on(values, "liger", "use_liger_kernel")
    items += _on(values, "fused_loss", "loss_type", "chunked_nll")
    items.append(_item("gradient_checkpointing", values["gradient_checkpointing"]))
    return items + _training(values)


def _register_sets(values: Values) -> Sequence[str]:
    """LLaMA-Factory looks names up in data/dataset_info.json."""
    entries = {entry: {"file_name": entry} for entry in _unsampled((*values["data.train"], *values["data.eval"]))}
    return ("These names belong into data/dataset_info.json:", json.dumps(entries, ensure_ascii=False),
            "template: stands for the name of the model's chat template there, such as qwen or llama3.")  # fmt: skip


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target(name="swift", title="ms-swift", items=_swift, is_command=True),
        Target(name="axolotl", title="axolotl", items=_axolotl),
        Target(name="llamafactory", title="LLaMA-Factory", items=_llamafactory, note=_register_sets),
        Target(name="hf", title="TRL", items=_huggingface),
    )
}
