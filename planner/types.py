"""The central types: what the planner is given, what it answers, and what a run reports.

Everything here is frozen, free of I/O and of torch. Bytes are int, times are float seconds.

Symbols used in formula texts, everywhere in the planner:
    T tokens held by one rank    L row length    d hidden size    f MLP width    N layers
    H query heads    K KV heads    h head dim    q = H*h    kv = K*h    V vocabulary    r LoRA rank
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from planner.model_shape import ModelSpec as ModelSpec

Basis = Literal["exact", "modelled", "measured", "assumed"]
Verdict = Literal["fits", "tight", "over", "unverified"]
Severity = Literal["error", "warning", "info"]
Method = Literal["full", "lora", "qlora"]
DType = Literal["bfloat16", "float16", "float32"]
Optim = Literal["adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit"]
MasterWeights = Literal["none", "fp32", "stochastic"]
Part = Literal[
    "weights", "adapters", "gradients", "optimizer", "checkpoints", "activations", "logits", "communication", "runtime"
]
Instant = Literal[
    "load",  # weights arrive, adapters and optimizer are built
    "layer_forward",  # MLP of the last decoder layer, running forward
    "forward_loss",  # end of the forward pass, the loss is being formed
    "loss_backward",  # gradient of the loss with respect to the logits
    "layer_backward",  # MLP of the last decoder layer, the first to run backward: every saved tensor is still there
    "attention_backward",  # attention of that layer, its MLP is done
    "backward_end",  # MLP of the first decoder layer, or the second (parts/recompute.py): gradients are there
    "optimizer_step",
    "evaluation_forward",  # a decoder layer of an evaluation batch, nothing is saved
    "evaluation",  # the loss of an evaluation batch
    "save",
]  # fmt: skip
INSTANTS: tuple[Instant, ...] = (
    "load", "layer_forward", "forward_loss", "loss_backward", "layer_backward", "attention_backward", "backward_end",
    "optimizer_step", "evaluation_forward", "evaluation", "save",
)  # fmt: skip
DTYPE_BYTES: dict[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One device. ``kind="cpu"`` is one training process on the host; its memory is host RAM."""

    name: str
    kind: Literal["cuda", "cpu"]
    memory_bytes: int  # nameplate
    usable_bytes: int  # what a process may hold in all (NVML free, or catalog value)
    compute_capability: tuple[int, int] | None
    gemm_flops: float  # dense bf16 (fp32 on CPU) FLOP/s sustained
    attention_flops: float  # forward+backward FLOP/s sustained, best kernel of this card
    memory_bytes_per_s: float
    pcie_bytes_per_s: float
    link_bytes_per_s: float  # to a peer of the same node, one way
    fp32_flops: float = 0.0  # dense float32 GEMM without TF32; 0: taken as a twelfth of gemm_flops
    dollars_per_hour: float | None = None
    peak_flops: float | None = None  # dense 16-bit FLOP/s of the datasheet
    vendor: Literal["nvidia", "amd", ""] = ""  # "" is a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    gpu: GpuSpec
    num_gpus_per_node: int
    num_nodes: int = 1
    host_bytes_per_node: int
    disk_free_bytes: int | None = None
    source: Literal["detected", "assumed"]

    @property
    def num_gpus(self) -> int:
        return self.num_gpus_per_node * self.num_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What is installed: detected for the hardware at hand, assumed (all extras) for imagined hardware."""

    source: Literal["detected", "assumed"]
    packages: Mapping[str, str]  # distribution name -> version
    compute_capability: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelDegrees:
    """World = data x ring x ulysses. Ulysses is innermost: neighbouring ranks share the fast links."""

    data: int = 1
    ring: int = 1
    ulysses: int = 1

    @property
    def sequence(self) -> int:
        return self.ring * self.ulysses

    @property
    def world(self) -> int:
        return self.data * self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationSetting:
    """A registry entry switched on, with every knob resolved."""

    name: str
    knobs: tuple[tuple[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return dict(self.knobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    train: tuple[str, ...]  # paths or ids, each may end in "#n" or "#n%"
    weights: tuple[tuple[str, Any], ...] = ()  # entry of train -> its share of the rows (core/data/mixture.py)
    eval: tuple[str, ...] = ()
    eval_fraction: float = 0.0  # taken from train when eval is empty
    shape: str = "auto"  # auto | messages | alpaca | text | ... (core/data/shapes.py)
    system: str | None = None
    over_length: Literal["drop", "truncate_left", "truncate_right", "split"] = "truncate_right"
    on_bad_row: Literal["stop", "skip"] = "stop"
    train_on: Literal["assistant", "last", "all"] = "assistant"
    columns: tuple[tuple[str, Any], ...] = ()  # our key -> the name this data gives it
    same_role: Literal["join", "refuse"] = "join"  # neighbours of one role in a conversation
    split_at: str = ""  # over_length split: a piece ends behind the last such text that fits
    split_overlap: int = 1  # over_length split: tokens a piece repeats of the one before, as context only


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A preset resolved for one cluster: nothing is "auto" any more. Field names are those of HF TrainingArguments."""

    schema: int = 1
    name: str
    model: str  # catalog key, hub id or local folder
    dtype: DType  # of the base weights and of the compute
    autocast: bool  # bf16/fp16 autocast around forward, for fp32 adapters on a 16-bit base
    max_length: int
    rope_scaling: tuple[tuple[str, Any], ...] = ()  # e.g. (("type", "yarn"), ("factor", 4.0))
    data: DataConfig
    parallel: ParallelDegrees
    optimizations: tuple[OptimizationSetting, ...]
    per_device_train_batch_size: int = 1  # rows of max_length per data-parallel replica and micro-batch
    per_device_eval_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    num_train_epochs: float = 1.0
    max_steps: int = -1  # > 0 overrides num_train_epochs
    learning_rate: float = 1e-4
    lr_scheduler_type: Literal["linear", "cosine", "constant", "wsd"] = "cosine"
    warmup_ratio: float = 0.0
    warmup_steps: int = 0  # > 0 overrides warmup_ratio
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0  # 0 switches clipping off
    optim: Optim = "adamw_torch"
    master_weights: MasterWeights = "none"  # what keeps small updates of 16-bit parameters
    update: Literal["step", "layer"] = "step"  # all parameters after the backward, or each layer within it
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    seed: int = 42
    logging_steps: int = 1
    eval_steps: int = 0  # 0: only before the first and after the last step, when there is eval data
    save_steps: int = 0  # 0: only at the end and on stop
    save_total_limit: int = 2
    keep_best: bool = False  # never delete the checkpoint with the lowest evaluation loss
    report_to: tuple[str, ...] = ()
    deterministic: bool = False
    engine: Literal["module", "layer"] = "module"  # who computes a decoder layer: transformers' module, or core/layer

    @property
    def method(self) -> Method:
        names = {setting.name for setting in self.optimizations}
        return "qlora" if "qlora" in names else "lora" if "lora" in names else "full"

    @property
    def adapters(self) -> OptimizationSetting | None:
        return self.optimization("lora") or self.optimization("qlora")

    def optimization(self, name: str) -> OptimizationSetting | None:
        return next((setting for setting in self.optimizations if setting.name == name), None)

    def canonical_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def hash(self) -> str:
        """12 hex digits that change when, and only when, a resolved value changes."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What a person writes: one YAML file, keys as in docs/presets.md."""

    name: str
    description: str
    values: Mapping[str, Any]  # every key but name, description, hardware and measured
    hardware: Mapping[str, Any] = field(default_factory=dict)  # {"gpu": "A10", "count": 1}
    measured: tuple[Mapping[str, Any], ...] = ()  # facts with date, commit, GPU
    origin: Literal["built-in", "project", "user", "file"] = "file"
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    code: str  # stable, kebab-case: "ulysses-degree-heads"
    severity: Severity
    what: str
    why: str = ""
    fix: str = ""
    suggestion: tuple[tuple[str, Any], ...] = ()  # preset keys and values that mend it


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One number of a plan that a person can open."""

    key: str  # unique within a breakdown: "logits.loss_gradient"
    part: Part
    instants: frozenset[Instant]
    bytes: int
    formula: str  # in symbols and in numbers
    basis: Basis
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBreakdown:
    terms: tuple[Term, ...]

    def bytes_at(self, instant: Instant) -> int:
        return sum(term.bytes for term in self.terms if instant in term.instants)

    def by_instant(self) -> dict[Instant, int]:
        return {instant: self.bytes_at(instant) for instant in INSTANTS}

    @property
    def peak_instant(self) -> Instant:
        return max(INSTANTS, key=self.bytes_at)

    @property
    def peak_bytes(self) -> int:
        """Maximum over instants, never a sum of maxima."""
        return self.bytes_at(self.peak_instant)

    def by_part(self, instant: Instant | None = None) -> dict[Part, int]:
        """Bytes of each part at one instant (the peak unless given); they add up to that instant."""
        at = instant or self.peak_instant
        parts: dict[Part, int] = {}
        for term in self.terms:
            if at in term.instants:
                parts[term.part] = parts.get(term.part, 0) + term.bytes
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """One GPU (or CPU process). allocated <= reserved <= used; fit is judged on used."""

    index: int
    usable_bytes: int
    allocated: MemoryBreakdown  # tensors, by term
    reserved_bytes: int  # with the allocator's rounding and fragmentation
    used_bytes: int  # what NVML (or the RSS of a CPU process) shows: reserved + context
    band_bytes: tuple[int, int]  # of used
    context_terms: tuple[Term, ...]  # what lies between allocated and used


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What rehearsals on this machine corrected (planner/calibration.py)."""

    num_rows: int
    date: str  # ISO day of the latest
    offset_bytes: int  # added to what lies beside tensors
    slope: float  # of what grows with the length
    speed: float  # measured over planned tokens/s
    band_share: float  # of used, to both sides


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    optimizations: tuple[OptimizationSetting, ...]
    changes: tuple[tuple[str, Any], ...]  # preset keys and values that lead there from the config at hand
    verdict: Verdict
    used_bytes: int
    tokens_per_second: float
    why: str
    peak_instant: Instant | None = None
    missing_bytes: int = 0  # on the GPU at the peak, in host memory or on the disk, as ``why`` says; 0 when it fits
    share_of_best: float = 1.0  # of the speed of the fastest that fits
    dollars_per_million_tokens: float | None = None  # None: the GPU has no price


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    config: RunConfig
    model: ModelSpec
    cluster: ClusterSpec
    environment: Environment
    gpus: tuple[GpuPlan, ...]
    host_bytes: int
    host_verdict: Verdict
    disk_bytes: int
    disk_verdict: Verdict
    verdict: Verdict
    seconds_per_step: float
    tokens_per_second: float
    batch: Mapping[str, int | float]  # world, data, sequence, accumulation, tokens_per_step, ...
    issues: tuple[Issue, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    host_terms: tuple[Term, ...] = ()  # add up to host_bytes; their keys say pinned, pageable or page_cache
    disk_terms: tuple[Term, ...] = ()  # add up to disk_bytes
    calibration: Calibration | None = None
    mfu_causal: float | None = None  # planner/mfu.py says which convention; None without a datasheet peak

    @property
    def worst_gpu(self) -> GpuPlan:
        return max(self.gpus, key=lambda gpu: gpu.used_bytes - gpu.usable_bytes)

    @property
    def peak_instant(self) -> Instant:
        return self.worst_gpu.allocated.peak_instant


RunPhase = Literal["data", "workers", "load", "evaluate", "train", "save"]
RunStatus = Literal["created", "starting", "running", "stopping", "done", "stopped", "failed", "lost"]
FINAL_STATUSES: frozenset[RunStatus] = frozenset({"done", "stopped", "failed", "lost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One line of events.jsonl. ``type`` names and their data are listed in planner/run_state.py."""

    time: float  # unix seconds
    type: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process for good: a pid alone may be reused. Linux: start_ticks is field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A pure fold of events (planner/run_state.py). ``lost`` is derived by readers and never written."""

    status: RunStatus = "created"
    phase: str = ""
    step: int = 0
    total_steps: int = 0
    world: int = 1
    supervisor: ProcessId | None = None
    workers: Mapping[int, ProcessId] = field(default_factory=dict)  # rank -> process
    last_checkpoint: str = ""
    failure_kind: str = ""  # oom | data | nonfinite | worker | launcher | environment | error
    failure_message: str = ""
    fallbacks: tuple[str, ...] = ()
    created_at: float = 0.0
    updated_at: float = 0.0
    attempt: int = 1  # grows by one with each resume
