"""The closed form of the planner against a dry run of the installed transformers and peft. Used by `longfit verify`.

A case is a resolved configuration on one GPU, by the engine that it names: transformers' modules, or the layer engine.
The dry run happens in a process of its own (core/verify/worker.py); the plan is made here. Both are compared instant by
instant, without what is no tensor of the run (cuBLAS workspaces).
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO, Any

from app.services.hardware import parse_cluster
from app.services.models import find_model, model_config
from app.services.planning import plan_resolved, refuse_errors
from app.services.presets import list_presets, load_preset
from app.services.resolve import Resolved, resolve
from core.run.config_file import config_to_yaml
from core.run.environment import installed_version
from core.run.interpreter import child_environment, python_argv
from planner.account import context
from planner.attention_kernels import KernelName
from planner.errors import ConfigError, LaunchError
from planner.layer_policy import FAMILIES
from planner.parts.layer_engine import kernel_of
from planner.types import INSTANTS, Instant, Preset

TOLERANCE = 0.005  # of the dry run's peak: what an instant may be off without moving a verdict
TOLERANCE_BYTES = 64 * 1024**2
REFERENCE_GPU = "H200"
REFERENCE_LENGTH = 8192
LONG = 65536
REFERENCE_MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.2-1B-Instruct",
    "Qwen/Qwen2.5-0.5B-Instruct",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen3-8B",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "HuggingFaceTB/SmolLM3-3B",
    "google/gemma-7b",
    "google/gemma-3-1b-it",
    "google/gemma-3-4b-it",
    "microsoft/phi-4",
    "THUDM/GLM-4-9B-0414",
)
_BF16: Mapping[str, Any] = {"lora": {"rank": 64, "adapter_dtype": "bfloat16"}}
_FP32: Mapping[str, Any] = {"lora": {"rank": 64, "adapter_dtype": "float32"}, "autocast": True}
_LEAN: Mapping[str, Any] = {"gradient_checkpointing": True, "fused_loss": True}
REFERENCE_METHODS: Mapping[str, Mapping[str, Any]] = {
    "full, checkpointing, fused loss": _LEAN,
    "full, stock loss": {},
    "bf16 LoRA, checkpointing, fused loss": {**_BF16, **_LEAN},
    "bf16 LoRA, fused loss": {**_BF16, "fused_loss": True},
    "fp32 LoRA with autocast, checkpointing, fused loss": {**_FP32, **_LEAN},
    "fp32 LoRA with autocast, checkpointing, stock loss": {**_FP32, "gradient_checkpointing": True},
}
# of the layer engine
_KEPT: Mapping[str, Any] = {"gradient_checkpointing": {"save_attention": True}, "fused_loss": True}
LAYER_MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.2-1B-Instruct",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "mistralai/Mistral-Nemo-Instruct-2407",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen3-8B",
)
LONG_LAYER_MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "mistralai/Mistral-Nemo-Instruct-2407",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-8B",
)
LAYER_METHODS: Mapping[str, Mapping[str, Any]] = {
    "bf16 LoRA, attention kept": {**_BF16, **_KEPT},
    "fp32 LoRA, attention kept": {**_FP32, **_KEPT},
    "bf16 LoRA, nothing recomputed": {**_BF16, "fused_loss": True},
    "bf16 LoRA, all layers but one in host memory": {**_BF16, **_KEPT, "checkpoint_offload": {"kept_layers": 1}},
    "bf16 LoRA, 2 head groups": {**_BF16, **_KEPT, "fake_parallel": {"groups": 2}},
    "QLoRA, attention kept": {"qlora": {"rank": 64}, **_KEPT},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    title: str  # what is switched on, or the preset's name
    resolved: Resolved

    @property
    def label(self) -> str:
        """Title, and the engine where it is not the modules."""
        return self.title if self.resolved.config.engine == "module" else f"layer engine: {self.title}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    instant: Instant
    planned_bytes: int
    dry_run_bytes: int
    allowed_bytes: int  # may be between them

    @property
    def error(self) -> float:
        """Planned over dry run, less one."""
        return self.planned_bytes / self.dry_run_bytes - 1

    @property
    def is_off(self) -> bool:
        return abs(self.planned_bytes - self.dry_run_bytes) > self.allowed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    case: Case
    differences: tuple[Difference, ...]  # in the order of INSTANTS

    @property
    def peak(self) -> Difference:
        """The largest of both, which need not be of one instant; named after the dry run's."""
        fullest = max(self.differences, key=lambda difference: difference.dry_run_bytes)
        return replace(fullest, planned_bytes=max(difference.planned_bytes for difference in self.differences))

    @property
    def off(self) -> tuple[Difference, ...]:
        return tuple(difference for difference in self.differences if difference.is_off)


def cases_of(names: Iterable[str]) -> tuple[Case, ...]:
    """``names`` are presets, each with the engine that a run on its GPU would take, or models, each with every method
    of both engines; without any, the reference models of both. Methods that this model or machine cannot do are left
    out: head groups that do not divide its KV heads, QLoRA without bitsandbytes.

    Raises: ConfigError for a name that is neither, or a preset of several GPUs.
    """
    presets = {preset.name for preset in list_presets()}
    cases: list[Case] = []
    for name in names:
        if name in presets or name.endswith((".yaml", ".yml")):
            cases.append(_preset_case(name))
        else:
            cases += [*_module_cases(name), *_layer_cases(name, REFERENCE_LENGTH)]
    return tuple(cases) or _reference_cases()


def verify(cases: tuple[Case, ...]) -> Iterator[Verified]:
    """One after the other, as the dry runs end.

    Raises: ConfigError for what a run would refuse, LaunchError when the process ends without an answer.
    """
    requests = [
        {
            "config": config_to_yaml(case.resolved.config),
            "model_config": dict(model_config(case.resolved.config.model)),
            "kernel": _kernel(case.resolved),
        }
        for case in cases
    ]
    for case, answer in zip(cases, _answers(requests)):
        if "error" in answer:
            raise ConfigError(f"{case.title}: {answer['error']['what']}", **_rest(answer["error"]))
        yield compare(case, answer["by_instant"])


def compare(case: Case, dry_run_bytes: Mapping[str, int]) -> Verified:
    terms = plan_resolved(case.resolved).worst_gpu.allocated.terms
    tensors = [term for term in terms if term.part != "runtime"]
    allowed_bytes = max(round(TOLERANCE * max(dry_run_bytes.values())), TOLERANCE_BYTES)
    return Verified(
        case=case,
        differences=tuple(
            Difference(
                instant=instant, dry_run_bytes=dry_run_bytes[instant],
                planned_bytes=sum(term.bytes for term in tensors if instant in term.instants),
                allowed_bytes=allowed_bytes,
            )
            for instant in INSTANTS
            if instant in dry_run_bytes
        ),
    )  # fmt: skip


def installed() -> dict[str, str]:
    """Versions of the packages whose code was run."""
    return {name: found for name in ("torch", "transformers", "peft") if (found := installed_version(name)) is not None}


def _preset_case(name: str) -> Case:
    preset = load_preset(name)
    gpu = str(preset.hardware.get("gpu") or REFERENCE_GPU)
    on_gpu = REFERENCE_GPU if gpu.lower() == "cpu" else gpu
    count = int(preset.hardware.get("count", 1))
    resolved = resolve(preset, cluster=parse_cluster(f"{count}x{on_gpu}"))
    if resolved.config.parallel.world > 1:
        raise ConfigError(
            f"The preset {preset.name} is meant for {count} GPUs.",
            why="A dry run has one rank: nothing is sent between ranks without memory.",
            fix="Verify its model instead: longfit verify " + resolved.config.model,
        )
    return Case(title=preset.name, resolved=_checked(resolved))


def _reference_cases() -> tuple[Case, ...]:
    cases = [case for name in REFERENCE_MODELS for case in _module_cases(name)]
    cases += [case for name in LAYER_MODELS for case in _layer_cases(name, REFERENCE_LENGTH)]
    cases += [case for name in LONG_LAYER_MODELS for case in _layer_cases(name, LONG)]
    return tuple(cases)


def _module_cases(name: str) -> list[Case]:
    return _model_cases(name, REFERENCE_LENGTH, REFERENCE_METHODS, {"engine": "module"})


def _layer_cases(name: str, length: int) -> list[Case]:
    """None for a family that the layer engine does not know."""
    model, _ = find_model(name)
    if model.family not in FAMILIES:
        return []
    has_bitsandbytes = installed_version("bitsandbytes") is not None
    methods = {
        title: values
        for title, values in LAYER_METHODS.items()
        if model.num_kv_heads % values.get("fake_parallel", {}).get("groups", 1) == 0
        and ("qlora" not in values or has_bitsandbytes)
    }
    native = model.max_position_embeddings
    is_scaled = length > max(native, REFERENCE_LENGTH)
    scaled = {"rope_scaling": {"type": "yarn", "factor": length / native}} if is_scaled else {}
    return _model_cases(name, length, methods, {"engine": "layer", **scaled})


def _model_cases(
    name: str, length: int, methods: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any]
) -> list[Case]:  # fmt: skip
    model, location = find_model(name)
    cluster = parse_cluster(REFERENCE_GPU)
    if "rope_scaling" not in values:
        length = min(length, model.max_position_embeddings)
    run = {"model": location, "max_length": length, "data": {"train": ["random"]}, **values}
    return [
        Case(
            title=title,
            resolved=_checked(
                resolve(Preset(name=title, description="", values={**run, **method}), cluster=cluster)
            ),
        )
        for title, method in methods.items()
    ]  # fmt: skip


def _checked(resolved: Resolved) -> Resolved:
    """Raises: ConfigError for what cannot be planned."""
    refuse_errors(plan_resolved(resolved))
    return resolved


def _kernel(resolved: Resolved) -> KernelName:
    """The attention kernel whose scratch the plan counts; for the modules it is torch's, whatever runs."""
    if resolved.config.engine == "module":
        return "torch"
    return kernel_of(context(resolved.config, resolved.model, resolved.cluster, resolved.environment, ()))


def _answers(requests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    with subprocess.Popen(
        python_argv("-m", "core.verify.worker"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=child_environment(os.environ), text=True, encoding="utf-8",
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        talk: list[str] = []
        listener = threading.Thread(target=_listen, args=(process.stderr, talk), daemon=True)
        listener.start()
        try:
            process.stdin.write(json.dumps({"cases": requests}))
            process.stdin.close()
            answered = 0
            for line in process.stdout:
                answered += 1
                yield json.loads(line)
        except BaseException:
            process.kill()
            raise
        code = process.wait()
        listener.join()
    if answered < len(requests):
        raise LaunchError(
            f"The dry run ended with exit code {code} at case {answered + 1} of {len(requests)}.",
            why="\n".join(talk[-5:]),
            fix="The installed transformers or peft may do what longfit's trainer does not know yet.",
        )


def _listen(stream: IO[str], talk: list[str]) -> None:
    talk.extend(line.rstrip() for line in stream)


def _rest(error: Mapping[str, str]) -> dict[str, str]:
    return {"why": error["why"], "fix": error["fix"]}
