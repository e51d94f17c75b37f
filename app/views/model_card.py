"""README.md of an exported folder: what it is, what it was trained from and how, and what came of it."""

from __future__ import annotations

from app.services.run_summary import RunSummary
from app.views.format import format_count, format_loss
from planner.types import RunConfig

_METHODS = {"lora": "LoRA", "qlora": "QLoRA", "full": "full fine-tuning"}
_LOAD_ADAPTER = """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("{base}")
model = PeftModel.from_pretrained(base, "path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")"""
_LOAD_MODEL = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")"""


def model_card(config: RunConfig, summary: RunSummary, *, kind: str, step: int, preset_text: str) -> str:
    """``kind``: adapter, merged or model. ``summary``: up to the exported step."""
    library = "peft" if kind == "adapter" else "transformers"
    load = _LOAD_ADAPTER.format(base=config.model) if kind == "adapter" else _LOAD_MODEL
    parts = [
        f"---\nbase_model: {_yaml_text(config.model)}\nlibrary_name: {library}\ntags:\n- longfit\n---",
        f"# {config.name}",
        " ".join(_what_it_is(config, kind)),
        "\n".join(f"- {line}" for line in _training(config, kind)),
        f"## Outcome\n\n{_outcome(summary, step)}",
        f"## Loading it\n\n```python\n{load}\n```",
    ]
    if preset_text:
        parts.append(
            f"## Preset\n\n`longfit train` on this file repeats the run:\n\n```yaml\n{preset_text.strip()}\n```"
        )
    return "\n\n".join(parts) + "\n"


def _what_it_is(config: RunConfig, kind: str) -> list[str]:
    base, method = f"`{config.model}`", _METHODS[config.method]
    if kind == "adapter":
        return [f"An adapter for {base}, trained by {method} with longfit; the base model is not in it."]
    if kind == "model":
        return [f"{base} after {method} with longfit: the whole model."]
    words = [
        f"{base} with an adapter merged into it, trained by {method} with longfit. Weights are in {config.dtype}; base "
        "and adapter were added in float32 and rounded once."
    ]
    if config.method == "qlora":
        words.append(
            f"The training saw the base in 4 bits (NF4); the adapter was merged into the base in {config.dtype}, so "
            "that this model is not exactly the one that was trained."
        )
    return words


def _training(config: RunConfig, kind: str) -> list[str]:
    lines = [f"rows of up to {format_count(config.max_length)} tokens, compute in {config.dtype}"]
    if config.adapters is not None:
        knobs = config.adapters.as_dict()
        lines.append(f"rank {knobs['rank']}, alpha {knobs['alpha']}, targets {knobs['targets']}")
    lines.append(f"learning rate {config.learning_rate:g} ({config.lr_scheduler_type}), {config.optim}")
    scaling = dict(config.rope_scaling)
    if scaling:
        told = "; the base's config.json needs it too, before the adapter is loaded" if kind == "adapter" else ""
        lines.append("RoPE scaling: " + ", ".join(f"{key} {value}" for key, value in scaling.items()) + told)
    if scaling.get("type") == "dynamic":
        lines.append(
            f"frequencies of a row of {format_count(config.max_length)} tokens at every length; other tools take them "
            "from the longest position that they have seen"
        )
    return lines


def _outcome(summary: RunSummary, step: int) -> str:
    rows = [f"| run | {summary.id} |", "|---|---|", f"| optimizer steps | {step:,} |"]
    if summary.tokens:
        rows.append(f"| tokens | {summary.tokens:,} |")
    for name, first, last in (
        ("loss, first and last", summary.first_loss, summary.last_loss),
        ("held-out loss, before and after", summary.first_eval_loss, summary.last_eval_loss),
    ):
        if last is not None:
            rows.append(f"| {name} | {format_loss(first)}, {format_loss(last)} |")
    return "\n".join(rows)


def _yaml_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
