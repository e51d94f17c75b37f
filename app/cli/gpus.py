"""`longfit gpus`: the GPUs of this machine as the driver shows them, and the catalog that plans can be made for."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from app.services.gpu_status import DriverStatus, GpuStatus, probe_gpus
from app.views.format import format_bytes
from planner.attention_kernels import AMD_CAPABILITIES
from planner.catalog.gpus import GPUS
from planner.types import GpuSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    status = probe_gpus()
    if args.json:
        answer = {"schema": 1, **status.to_dict(), "catalog": [_catalog_entry(gpu) for gpu in GPUS.values()]}
        json.dump(answer, sys.stdout, indent=2)
        print()
        return 0
    print("\n".join((*_here(status), "", *_catalog())))
    return 0


def _here(status: DriverStatus) -> list[str]:
    if status.problem:
        return [f"This machine: {status.problem}. Plans and runs use CPU processes (--gpu cpu)."]
    lines = [f"This machine, driver {status.driver_version or 'n/a'}"]
    lines.append(f"  {'#':>2}  {'name':<28} {'memory':>10} {'free':>10} {'use':>6} {'procs':>5}  planned as")
    return lines + [f"  {gpu.index:>2}  {_gpu_words(gpu)}" for gpu in status.gpus]


def _gpu_words(gpu: GpuStatus) -> str:
    if gpu.problem:
        return f"{gpu.name or 'GPU'}: {gpu.problem}"
    use = "n/a" if gpu.utilization is None else f"{gpu.utilization} %"
    processes = "n/a" if gpu.num_processes is None else str(gpu.num_processes)
    planned_as = gpu.catalog_name or "the catalog's nearest in memory"
    return f"{gpu.name:<28} {_size(gpu.total_bytes)} {_size(gpu.free_bytes)} {use:>6} {processes:>5}  {planned_as}"


def _size(num_bytes: int | None) -> str:
    return f"{'n/a' if num_bytes is None else format_bytes(num_bytes):>10}"


def _catalog() -> list[str]:
    return [
        "Catalog, for plans without the hardware: longfit plan PRESET --gpu 2xA10",
        f"  {'name':<17} {'memory':>10} {'usable':>10} {'arch':>6} {'peak':>6} {'GEMM':>6} {'attention':>9}"
        f" {'memory':>6} {'PCIe':>5} {'link':>5} {'$/hour':>7}",
        *(f"  {_spec_words(gpu)}" for gpu in GPUS.values()),
        "  peak (datasheet, dense 16 bit), GEMM and attention (sustained) in TFLOP/s; memory, PCIe and",
        "  link (to a peer, one way) in GB/s. The H200's were measured, the others' are assumed. $/hour is one",
        "  seller's list price (planner/catalog/prices.py).",
    ]


def _arch(gpu: GpuSpec) -> str:
    if gpu.compute_capability in AMD_CAPABILITIES:
        return AMD_CAPABILITIES[gpu.compute_capability]
    return "sm" + "".join(str(part) for part in gpu.compute_capability or ())


def _spec_words(gpu: GpuSpec) -> str:
    return (
        f"{gpu.name:<17} {_size(gpu.memory_bytes)} {_size(gpu.usable_bytes)} {_arch(gpu):>6}"
        f" {(gpu.peak_flops or 0) / 1e12:>6.0f} {gpu.gemm_flops / 1e12:>6.0f} {gpu.attention_flops / 1e12:>9.0f}"
        f" {gpu.memory_bytes_per_s / 1e9:>6.0f} {gpu.pcie_bytes_per_s / 1e9:>5.0f} {gpu.link_bytes_per_s / 1e9:>5.0f}"
        f" {'n/a' if gpu.dollars_per_hour is None else f'{gpu.dollars_per_hour:.2f}':>7}"
    )


def _catalog_entry(gpu: GpuSpec) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "usable_bytes": gpu.usable_bytes,
        "compute_capability": gpu.compute_capability,
        "vendor": gpu.vendor,
        "peak_flops": gpu.peak_flops,
        "gemm_flops": gpu.gemm_flops,
        "attention_flops": gpu.attention_flops,
        "memory_bytes_per_s": gpu.memory_bytes_per_s,
        "pcie_bytes_per_s": gpu.pcie_bytes_per_s,
        "link_bytes_per_s": gpu.link_bytes_per_s,
        "dollars_per_hour": gpu.dollars_per_hour,
    }
