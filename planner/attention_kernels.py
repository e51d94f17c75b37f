"""Which attention kernels a device may use, in the order in which they are tried, and why the others are out.

One table for the plan (`flash_attention`'s check), for resolving a preset and for the worker, which proves the
candidates on the real device (core/attention/choose.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

KernelName = Literal["flash4", "flash3", "cudnn", "flash2", "torch", "reference", "cpu"]
Version = Literal["auto", "2", "3", "4", "sdpa"]
VERSIONS: tuple[Version, ...] = ("auto", "2", "3", "4", "sdpa")

Capability = tuple[int, int]
AMD_CAPABILITIES: Mapping[Capability, str] = {(9, 4): "gfx942"}  # no NVIDIA GPU has these numbers

TITLES: Mapping[KernelName, str] = {
    "flash4": "FlashAttention-4 (CuTe)",
    "flash3": "FlashAttention-3",
    "cudnn": "cuDNN attention",
    "flash2": "FlashAttention-2",
    "torch": "torch flash attention",
    "reference": "torch reference",
    "cpu": "torch CPU flash",
}
BY_NUMBER: Mapping[Version, KernelName] = {"2": "flash2", "3": "flash3", "4": "flash4"}
# distribution -> the line that installs it
PACKAGES: Mapping[KernelName, tuple[str, str]] = {
    "flash2": ("flash-attn", 'MAX_JOBS=4 pip install --no-build-isolation "longfit[flash]"'),
    "flash3": ("flash-attn-3", "build it: python setup.py install in the hopper folder of Dao-AILab/flash-attention"),
    "flash4": ("flash-attn-4", 'pip install "longfit[flash4]"'),
}
# cuDNN builds a graph for every length it meets, 0.05 to 1.2 s each. Rows that are cut or packed to max_length are
# multiples of the first; from the second on its attention saves more than the graph costs
# (benchmarks/cudnn_lengths.py; 28 layers of 28 heads: 1 s a row at 32,768 tokens, 4 s at 65,536).
CUDNN_LENGTH_MULTIPLE, CUDNN_ANY_LENGTH = 256, 32768
# forward and backward together, TFLOP/s, one H200, 28/4 heads of 128, bf16, causal, 32K tokens, 2026-11-29
HOPPER_TFLOPS: Mapping[KernelName, int] = {"flash4": 626, "cudnn": 558, "torch": 325, "flash2": 325}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """``names`` in the order of preference, never empty unless a version was refused; ``out``: why the others of
    ``preferred`` are not among them."""

    preferred: tuple[KernelName, ...]
    names: tuple[KernelName, ...]
    out: Mapping[KernelName, str]


def candidates(
    *, capability: Capability | None, dtype: str, head_dim: int, packages: Mapping[str, str], version: Version,
    deterministic: bool = False,
) -> Candidates:  # fmt: skip
    """``capability`` None: a CPU. ``packages``: distribution -> version. A version asked for by number stands alone."""
    if version in BY_NUMBER:
        name = BY_NUMBER[version]
        reason = why_not(name, capability=capability, dtype=dtype, head_dim=head_dim, packages=packages)
        return Candidates(preferred=(name,), names=() if reason else (name,), out={name: reason} if reason else {})
    if capability is None:
        return Candidates(preferred=("cpu",), names=("cpu",), out={})
    preferred: tuple[KernelName, ...] = ("cudnn", "torch") if version == "sdpa" else order(capability)
    names: list[KernelName] = []
    out: dict[KernelName, str] = {}
    for name in preferred:
        reason = why_not(name, capability=capability, dtype=dtype, head_dim=head_dim, packages=packages)
        if name == "cudnn" and not reason and deterministic:
            reason = "its backward is not deterministic"
        if reason:
            out[name] = reason
        else:
            names.append(name)
    return Candidates(preferred=preferred, names=tuple(names) or ("reference",), out=out)


def order(capability: Capability) -> tuple[KernelName, ...]:
    """What is tried under ``auto``, the likely fastest first."""
    if capability in AMD_CAPABILITIES:
        return ("flash2", "torch")
    if capability >= (10, 0):
        return ("flash4", "cudnn", "flash2", "torch")
    if capability >= (9, 0):
        return ("flash4", "flash3", "cudnn", "flash2", "torch")
    if capability >= (8, 0):
        return ("flash2", "torch")
    return ("torch",)


def why_not(
    name: KernelName, *, capability: Capability | None, dtype: str, head_dim: int, packages: Mapping[str, str]
) -> str:
    """The reason for which a kernel cannot run; empty when only the start-up probe can tell."""
    title = TITLES[name]
    if capability is None:
        return f"{title} runs on NVIDIA GPUs, this is a CPU"
    if capability in AMD_CAPABILITIES and name not in ("flash2", "torch"):
        return f"{title} runs on NVIDIA GPUs, this is an AMD {AMD_CAPABILITIES[capability]}"
    at_least, below = {
        # made for Hopper; on Ada a build may work and the probe decides, on Ampere FlashAttention-2 is the faster one
        "flash2": ((8, 0), None), "flash3": ((8, 9), (10, 0)), "flash4": ((9, 0), None),
        "cudnn": ((8, 0), None), "torch": ((8, 0), None),
    }[name]  # fmt: skip
    here = f"this GPU has {capability[0]}.{capability[1]}"
    if capability < at_least:
        return f"{title} needs compute capability {at_least[0]}.{at_least[1]}, {here}"
    if below is not None and capability >= below:
        return f"{title} is built for compute capabilities 8.9 and 9.0, {here}"
    if dtype not in ("bfloat16", "float16"):
        return f"{title} takes bfloat16 and float16 only, dtype is {dtype}"
    if head_dim % 8 or head_dim > 256:
        return f"{title} takes head dims up to 256 in steps of 8, the model has {head_dim}"
    if name in PACKAGES and PACKAGES[name][0] not in packages:
        distribution, install = PACKAGES[name]
        other = "; the package flash-attn is FlashAttention-2, not 3" if name == "flash3" else ""
        module = " (module flash_attn_interface)" if name == "flash3" else ""
        return f"the package {distribution}{module} is not installed{other}. {install}"
    return ""


def cudnn_takes(num_tokens: int) -> bool:
    """Whether a dense block of so many tokens is worth a graph of cuDNN; others go to torch's flash kernel."""
    return num_tokens % CUDNN_LENGTH_MULTIPLE == 0 or num_tokens >= CUDNN_ANY_LENGTH


def hopper_speed_up(found: Candidates) -> tuple[int, int]:
    """(TFLOP/s of torch's flash, that of the best candidate): what attention takes against the catalog's rate."""
    best = max((HOPPER_TFLOPS.get(name, 0) for name in found.names), default=0)
    return HOPPER_TFLOPS["torch"], best or HOPPER_TFLOPS["torch"]
