"""Which attention kernel a run gets: the fastest candidate that gives right numbers on this device, tried at the start.

Called by `flash_attention` (core/optimizations/flash_attention.py). What a device would rather use and cannot is told
as a `fallback` event, what it uses as evidence and in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from core.attention.flash_packages import FlashAttention2, FlashAttention3, FlashAttention4
from core.attention.kernel import AttentionKernel, CpuFlashKernel, ReferenceKernel
from core.attention.segments import backward_segments, forward_segments
from core.attention.torch_kernels import CudnnKernel, TorchFlashKernel
from core.attention.windows import WindowedSegments
from core.optimizations.evidence import Evidence, NotActive
from planner.attention_kernels import BY_NUMBER, PACKAGES, TITLES, KernelName, Version, candidates

log = logging.getLogger(__name__)

BUILDERS: Mapping[KernelName, Callable[[], AttentionKernel]] = {
    "flash4": FlashAttention4, "flash3": FlashAttention3, "flash2": FlashAttention2, "cudnn": CudnnKernel,
    "torch": TorchFlashKernel, "reference": ReferenceKernel, "cpu": CpuFlashKernel,
}  # fmt: skip

# How far a kernel may be from the float32 reference on one small block, as a fraction of the largest value: a few
# roundings of the dtype (8, 11 and 24 bits of mantissa).
_TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 1e-4, torch.float64: 1e-4}
_PROBE_TOKENS = 256  # what cuDNN takes as a usual length
_PROBE_WINDOW = 96
_TIMED_TOKENS = 4096
_WORTH_IT = 0.95  # a later candidate must take less than this share of the time, so that noise decides nothing


Call = Callable[..., list[Tensor]]  # (kernel, q, k, v, dout, scale) -> output and gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What the kernel will be used for."""

    device: torch.device
    dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    uses_segments: bool  # rows are packed
    uses_blocks: bool  # a ring attends between the parts of a row
    uses_window: bool = False  # some layers attend within a sliding window


def choose_kernel(
    problem: Problem,
    *,
    version: Version,
    emit: Callable[[str, Mapping[str, Any]], None],
    builders: Mapping[KernelName, Callable[[], AttentionKernel]] = BUILDERS,
    packages: Mapping[str, str] | None = None,
    agree: Callable[[KernelName], KernelName] = lambda name: name,
) -> AttentionKernel:
    """The kernel of the run, proven by a small forward and backward.

    ``agree`` makes all ranks take rank 0's choice. Collective when it is.
    Raises:
        NotActive: the version asked for is not possible or gives wrong numbers here; or no kernel does.
    """
    found = candidates(
        capability=torch.cuda.get_device_capability(problem.device) if problem.device.type == "cuda" else None,
        dtype=str(problem.dtype).removeprefix("torch."),
        head_dim=problem.head_dim,
        packages=installed_packages() if packages is None else packages,
        version=version,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    out = dict(found.out)
    passed: dict[KernelName, tuple[AttentionKernel, float]] = {}
    for name in (*found.names, *(() if version in BY_NUMBER else ("reference",))):
        if name == "reference" and passed:
            break  # nobody's choice as long as anything else works
        try:
            kernel = builders[name]()
            passed[name] = kernel, largest_error(kernel, problem)
        except Exception as error:  # whatever a foreign package does, the next candidate has its chance
            out[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    if not passed:
        reasons = "; ".join(f"{TITLES[name]}: {reason}" for name, reason in out.items())
        raise NotActive(f"flash_attention: version {version} is not possible here. {reasons}")
    chosen = agree(_fastest(passed, problem))
    if chosen not in passed:
        raise NotActive(f"rank 0 chose {TITLES[chosen]}, which this rank cannot use: {out.get(chosen, 'not tried')}")
    for name in found.preferred:
        if name == chosen:
            break
        if name in out:
            reason = f"{out[name]}; {TITLES[chosen]} is used"
            emit("fallback", {"optimization": "flash_attention", "reason": reason})
    kernel, error = passed[chosen]
    log.info("attention: %s", _log_line(kernel, problem))
    emit(
        "evidence",
        asdict(
            Evidence(
                optimization="attention",
                claim=f"{kernel.name} (torch {torch.__version__}), forward and backward within {error:.1g} of float32",
            )
        ),
    )
    return kernel


def installed_packages() -> dict[str, str]:
    """The flash attention packages of this process: distribution -> version."""
    found: dict[str, str] = {}
    for distribution, _ in PACKAGES.values():
        try:
            found[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    # a build of the hopper folder, or a wheel unpacked onto the path, need not be a distribution
    for module, distribution in (("flash_attn_interface", "flash-attn-3"), ("flash_attn.cute", "flash-attn-4")):
        try:
            if find_spec(module) is not None:
                found.setdefault(distribution, "unknown")
        except ImportError:  # no parent package, or one that does not load
            continue
    return found


def largest_error(kernel: AttentionKernel, problem: Problem) -> float:
    """Of output and gradients against the float32 reference, over the kinds of call that the run will make.

    Raises:
        NotActive: it exceeds the tolerance of the dtype, or is not a number.
    """
    group_size = problem.num_heads // problem.num_kv_heads
    inputs = _inputs(problem, heads=2 * group_size, kv_heads=2, num_tokens=_PROBE_TOKENS)
    wide_inputs = tuple(x.float() for x in inputs)
    scale = problem.head_dim**-0.5
    calls: list[Call] = [partial(_segments, bounds=(0, _PROBE_TOKENS))]
    if problem.uses_segments:
        calls.append(partial(_segments, bounds=(0, 1, 100, _PROBE_TOKENS)))
    if problem.uses_blocks:
        calls.append(_block)
    if problem.uses_window:
        calls.append(_within_window)
    errors: list[float] = []
    for call in calls:
        for got, want in zip(call(kernel, *inputs, scale), call(ReferenceKernel(), *wide_inputs, scale)):
            errors.append(((got.float() - want).abs().max() / want.abs().max()).item())
    tolerance = _TOLERANCE[problem.dtype]
    if not all(error <= tolerance for error in errors):
        raise NotActive(
            f"attention kernel '{kernel.name}' is wrong on this device: relative error {max(errors):.2g} in "
            f"{problem.dtype}, tolerance {tolerance:.2g}"
        )
    return max(errors)


def _segments(
    kernel: AttentionKernel, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scale: float, *, bounds: tuple[int, ...]
) -> list[Tensor]:
    """Output and gradients, as of the calls below."""
    out, lse = forward_segments(kernel, q, k, v, bounds, scale)
    return [out, *backward_segments(kernel, dout, q, k, v, out, lse, bounds, scale)]


def _block(kernel: AttentionKernel, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scale: float) -> list[Tensor]:
    """Every query attends to the first half of the keys."""
    k, v = (x[:, :, : x.shape[2] // 2] for x in (k, v))
    out, lse = kernel.forward(q, k, v, causal=False, scale=scale)
    return [out, *kernel.backward(dout, q, k, v, out, lse, causal=False, scale=scale)]


def _within_window(
    kernel: AttentionKernel, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scale: float
) -> list[Tensor]:
    windowed, cu_seqlens = WindowedSegments(), (0, q.shape[2])
    out, lse = windowed.forward(kernel, q, k, v, cu_seqlens, scale, _PROBE_WINDOW)
    return [out, *windowed.backward(kernel, dout, q, k, v, out, lse, cu_seqlens, scale, _PROBE_WINDOW)]


def _inputs(problem: Problem, *, heads: int, kv_heads: int, num_tokens: int) -> tuple[Tensor, ...]:
    """q, k, v, dout laid out as a model's projections leave them; the same numbers everywhere."""
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(1, num_tokens, n, problem.head_dim, generator=generator).to(problem.device, problem.dtype)
        .transpose(1, 2)
        for n in (heads, kv_heads, kv_heads, heads)
    )  # fmt: skip


def _fastest(passed: Mapping[KernelName, tuple[AttentionKernel, float]], problem: Problem) -> KernelName:
    """By forward and backward of one causal block of the model's heads; the table's order where it is close."""
    first, *others = passed
    if not others:
        return first
    inputs = _inputs(problem, heads=problem.num_heads, kv_heads=problem.num_kv_heads, num_tokens=_TIMED_TOKENS)
    best, best_seconds = first, _seconds(passed[first][0], inputs, problem)
    for name in others:
        seconds = _seconds(passed[name][0], inputs, problem)
        if seconds < _WORTH_IT * best_seconds:
            best, best_seconds = name, seconds
    return best


def _seconds(kernel: AttentionKernel, inputs: tuple[Tensor, ...], problem: Problem, *, repeats: int = 5) -> float:
    """The shortest of ``repeats``, after one to warm up."""
    shortest = float("inf")
    for repeat in range(repeats + 1):
        _wait(problem.device)
        started = time.perf_counter()
        _segments(kernel, *inputs, problem.head_dim**-0.5, bounds=(0, inputs[0].shape[2]))
        _wait(problem.device)
        if repeat:
            shortest = min(shortest, time.perf_counter() - started)
    return shortest


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _log_line(kernel: AttentionKernel, problem: Problem) -> str:
    """ "FlashAttention-4 (CuTe) 4.0.0b36, sm90, varlen" """
    where = "cpu"
    if problem.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(problem.device)
        where = f"sm{major}{minor}"
    packed = "varlen" if kernel.takes_segments else "segment by segment"
    unverified = ", unverified on any GPU of longfit's own tests" if kernel.key == "flash3" else ""
    return f"{kernel.name}, {where}{', ' + packed if problem.uses_segments else ''}{unverified}"
