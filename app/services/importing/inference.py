"""Commands that do not train: `swift infer` becomes a `longfit infer` line, others are told. For imported.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.services.importing.draft import Draft
from app.services.importing.finding import Kind
from app.services.importing.pasted import Setting
from app.services.importing.rules import Rule, ignored, impossible
from app.services.importing.values import is_off, number, one, text, truth, whole

VERBS = frozenset({"infer", "app", "chat", "inference", "webchat"})
_MODEL, _PROMPT = "MODEL", "PROMPT"


def _flag(name: str, convert: Any) -> Rule:
    def rule(draft: Draft, setting: Setting) -> None:
        value = convert(setting.value)
        draft.wish(name, value, setting)
        draft.tell("translated", [setting], what=f"{name} {value}")

    return rule


def _adapters(draft: Draft, setting: Setting) -> None:
    names = setting.value if isinstance(setting.value, (list, tuple)) else (text(setting.value),)
    draft.wish("--adapter", str(names[0]), setting)
    draft.tell("translated", [setting], what=f"--adapter {names[0]}")
    if len(names) > 1:
        draft.tell("impossible", [setting], what="One adapter answers at a time; the first is taken.")


def _model(draft: Draft, setting: Setting) -> None:
    draft.wish("model", text(setting.value), setting)
    draft.tell("translated", [setting], what=f"longfit infer {text(setting.value)}")


def _backend(draft: Draft, setting: Setting) -> None:
    word = text(setting.value).lower()
    if word in ("pt", "transformers", "hf", "huggingface"):
        draft.tell("default", [setting], why="Answers come from PyTorch.")
    else:
        draft.wish("backend", word, setting)


def _stream(draft: Draft, setting: Setting) -> None:
    kind: Kind = "default" if truth(setting.value) else "ignored"
    draft.tell(kind, [setting], why="The answer is written as it comes.")


def _merge(draft: Draft, setting: Setting) -> None:
    if is_off(setting.value):
        draft.tell("default", [setting], why="The adapter is applied beside the model.")
    else:
        draft.tell(
            "impossible", [setting], what="Nothing is merged; the adapter is applied beside the model.",
            why="The answers are the same.",
            fix="To merge for another server: peft's AutoPeftModelForCausalLM(...).merge_and_unload().",
        )  # fmt: skip


_LENGTH = "The prompt and the answer may be as long as the model reads; the adapter keeps its trained RoPE scaling."

RULES: Mapping[str, Rule] = {
    "adapters": _adapters,
    "ckpt_dir": _adapters,
    "adapter_name_or_path": _adapters,
    "model": _model,
    "model_id_or_path": _model,
    "model_name_or_path": _model,
    "base_model": _model,
    "infer_backend": _backend,
    "max_new_tokens": _flag("--max-new-tokens", whole),
    "temperature": _flag("--temperature", number),
    "top_p": _flag("--top-p", number),
    "seed": _flag("--seed", whole),
    "system": _flag("--system", text),
    "stream": _stream,
    "merge_lora": _merge,
    "vllm_max_model_len": ignored(_LENGTH),
    "max_model_len": ignored(_LENGTH),
    "max_length": ignored(_LENGTH),
    "top_k": impossible("Sampling is by temperature and top-p.", off=lambda v: is_off(v) or str(one(v)) in ("-1", "1")),
    "repetition_penalty": impossible(
        "Answers are not penalised.", off=lambda v: is_off(v) or str(one(v)) in ("1", "1.0")
    ),
    "num_beams": impossible("Answers are sampled or greedy.", off=lambda v: is_off(v) or str(one(v)) == "1"),
    "load_data_args": ignored("A prompt is given on the command line."),
    "val_dataset": impossible("A prompt is given on the command line, not a set.", "held-out loss: data.eval"),
    "dataset": impossible("A prompt is given on the command line, not a set.", "held-out loss: data.eval"),
    "attn_impl": ignored("The attention kernel is chosen by itself."),
    "template": ignored("The model's own chat template is used."),
    "model_type": ignored("The architecture is read from the model's config.json."),
}


def infer_command(draft: Draft) -> tuple[str, ...]:
    """The `longfit infer` line, with MODEL and PROMPT where the paste does not say them."""
    model, adapter, backend = draft.take("model"), draft.take("--adapter"), draft.take("backend")
    if backend is not None:
        name, folder = model.value if model else _MODEL, adapter.value if adapter else ""
        lora = f" --enable-lora --lora-modules trained={folder} --max-lora-rank 64" if folder else ""
        draft.tell(
            "impossible", [backend.setting], what=f"{backend.value} does not answer here, PyTorch does.",
            why="Adapters are saved in PEFT layout, which vLLM loads; its rank limit is 16 unless raised.",
            fix=f"vllm serve {name}{lora}" if backend.value == "vllm" else "",
        )  # fmt: skip
    if model is None:
        draft.tell(
            "implied", (), what=f"{_MODEL}: the model that the adapter was trained on.",
            why="adapter_config.json in the adapter's folder names it.",
        )  # fmt: skip
    flags = [part for name, wish in sorted(draft.wishes.items()) for part in (name, str(wish.value))]
    front = ["longfit", "infer", model.value if model else _MODEL, _PROMPT]
    return (*front, *(["--adapter", adapter.value] if adapter else []), *flags)
