"""Out of memory at four moments of a run, on one GPU: the post-mortem, and whether its first change then runs.

    python benchmarks/forced_oom.py OUT.csv FOLDER [CASE ...]

This process holds so much of the card that what is left lies between what a run needs before the moment and at it. Then
`longfit train --force` must end with exit code 4 and a post-mortem that names the moment, and `longfit train` with the
first change proposed there, on the same card with as little left, must end well. A Llama of 1.1 B random weights and
texts of random letters are written to FOLDER.
"""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

GIB = 1024**3
SHAPE = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 16,
    "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 65536, "tie_word_embeddings": False,
}  # fmt: skip
LORA = {"lora": {"rank": 16, "alpha": 32}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    moment: str  # as a post-mortem names it
    values: Mapping[str, Any]
    below: tuple[str, ...]  # planned instants that must still fit
    above: tuple[str, ...]  # planned instants that must not; what is left lies in the middle
    without: tuple[str, ...] = ()  # terms that are not there yet when `below` happens


CASES = (
    Case(moment="forward", values={"max_length": 16384, **LORA, "fused_loss": True}, below=("load",),
         above=("forward_loss",)),
    Case(moment="backward", values={"max_length": 32768, **LORA, "fused_loss": True, "gradient_checkpointing": True,
         "engine": "module"}, below=("layer_forward", "forward_loss"), above=("layer_backward",)),
    Case(moment="step", values={"max_length": 1024, "fused_loss": True, "gradient_checkpointing": True},
         below=("layer_backward", "backward_end"), above=("optimizer_step",), without=("optimizer.",)),
    Case(moment="evaluation", values={"max_length": 8192, **LORA, "fused_loss": True, "gradient_checkpointing": True,
         "per_device_eval_batch_size": 16, "engine": "module"}, below=("load", "layer_backward"),
         above=("evaluation_forward",)),
)  # fmt: skip
COLUMNS = (
    "case", "values", "free_bytes", "planned_used", "usable_planned_for", "exit_code", "instant", "message",
    "largest_parts", "changes", "first_change", "used_by_first_change", "memory_with_first_change",
    "exit_code_with_first_change", "gpu", "torch", "transformers", "commit", "date",
)  # fmt: skip


def write_inputs(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.core.train.tiny_llama import save_tiny_llama

    save_tiny_llama(folder / "model")  # its tokenizer stays
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM._from_config(LlamaConfig(**SHAPE), dtype=torch.bfloat16)
    model.save_pretrained(folder / "model")
    letters = random.Random(0)
    for name, count in (("train", 4), ("eval", 16)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for _ in range(count):
                text = " ".join("".join(letters.choices("abcdefghij", k=7)) for _ in range(8192))
                file.write(json.dumps({"text": text}) + "\n")


def preset_of(case: Case, folder: Path) -> Path:
    values = {
        "model": str(folder / "model"), "data": {"train": [str(folder / "train.jsonl")]}, "max_steps": 2,
        "learning_rate": 1e-5, "flash_attention": "sdpa", **case.values,
    }  # fmt: skip
    if case.moment == "evaluation":
        values["data"]["eval"] = [str(folder / "eval.jsonl")]
    path = folder / f"{case.moment}.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")  # which is YAML
    return path


def bytes_to_leave(case: Case, plan: Any) -> int:
    """Of the card for the run: the middle between what it holds before the moment and at it, and the context."""
    gpu = plan.worst_gpu

    def held(instant: str, without: tuple[str, ...]) -> int:
        terms = gpu.allocated.terms
        return sum(t.bytes for t in terms if instant in t.instants and not (without and t.key.startswith(without)))

    low = max(held(instant, case.without) for instant in case.below)
    high = max(held(instant, ()) for instant in case.above)
    if high - low < GIB:
        raise SystemExit(f"{case.moment}: only {high - low:,} bytes lie between the moments")
    return (low + high) // 2 + gpu.used_bytes - gpu.reserved_bytes


@contextmanager
def only_this_much_free(wanted: int) -> Iterator[int]:
    """Hold the rest of the card. What is really free."""
    import torch

    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free - wanted, dtype=torch.uint8, device="cuda")
    yield torch.cuda.mem_get_info()[0]
    del held
    torch.cuda.empty_cache()


def train(preset: Path, runs: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "app.cli.main", "train", str(preset), "--runs-dir", str(runs), "--yes", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def run(case: Case, folder: Path) -> dict[str, Any]:
    from app.services.planning import plan_preset
    from app.services.presets import load_preset
    from app.views.run_view import set_arguments

    preset = preset_of(case, folder)
    plan = plan_preset(load_preset(str(preset))).plan
    runs = folder / "runs" / case.moment
    with only_this_much_free(bytes_to_leave(case, plan)) as free:
        code, said = train(preset, runs, "--force")
        row: dict[str, Any] = {"free_bytes": free, "planned_used": plan.worst_gpu.used_bytes, "exit_code": code}
        found = sorted(runs.glob("*/postmortem.json"))
        if not found:
            return {**row, "message": said[-500:]}
        postmortem = json.loads(found[-1].read_text())
        known = postmortem["out_of_memory"] or {}
        parts = [f"{entry['part']} {entry['bytes'] / GIB:.2f} GiB" for entry in known.get("parts", ())]
        changes = known.get("changes", ())
        row |= {
            "instant": known.get("instant"), "message": postmortem["message"], "largest_parts": ", ".join(parts[:3]),
            "usable_planned_for": known.get("usable_bytes"), "changes": json.dumps([c["changes"] for c in changes]),
        }  # fmt: skip
        if changes:
            code, said = train(preset, runs, *set_arguments(changes[0]["changes"]))
            row |= {
                "first_change": json.dumps(changes[0]["changes"]), "used_by_first_change": changes[0]["used_bytes"],
                "exit_code_with_first_change": code,
                "memory_with_first_change": next((line for line in said.splitlines() if line.startswith("memory")), ""),
            }  # fmt: skip
            if code:
                print(said[-3000:])
    return row


def main(out: str, folder: Path, names: list[str]) -> int:
    import torch
    import transformers

    facts = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "transformers": transformers.__version__,
        "commit": os.environ.get("LONGFIT_COMMIT", ""), "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
    write_inputs(folder)
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if names and case.moment not in names:
            continue
        rows.append({"case": case.moment, "values": json.dumps(case.values), **run(case, folder), **facts})
        print({key: rows[-1].get(key) for key in COLUMNS}, flush=True)
        with Path(out).open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    passed = [r["instant"] == r["case"] and r.get("exit_code_with_first_change") == 0 for r in rows]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
