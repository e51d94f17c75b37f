"""`longfit gpus`: the GPUs of this machine as the driver shows them, and the catalog that plans can be made for."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from app.services.gpu_status import DriverStatus, GpuStatus, probe_gpus
from app.views.format import format_bytes
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
        f"  {'name':<12} {'memory':>10} {'usable':>10} {'arch':>6} {'GEMM':>9} {'attention':>10} {'memory':>9}"
        f" {'PCIe':>8} {'link':>8}",
        *(f"  {_spec_words(gpu)}" for gpu in GPUS.values()),
        "  GEMM and attention in TFLOP/s, sustained; memory, PCIe and link (to a peer, one way) in GB/s",
    ]


def _spec_words(gpu: GpuSpec) -> str:
    arch = "".join(str(part) for part in gpu.compute_capability or ())
    return (
        f"{gpu.name:<12} {_size(gpu.memory_bytes)} {_size(gpu.usable_bytes)} {'sm' + arch:>6}"
        f" {gpu.gemm_flops / 1e12:>9.0f} {gpu.attention_flops / 1e12:>10.0f} {gpu.memory_bytes_per_s / 1e9:>9.0f}"
        f" {gpu.pcie_bytes_per_s / 1e9:>8.0f} {gpu.link_bytes_per_s / 1e9:>8.0f}"
    )


def _catalog_entry(gpu: GpuSpec) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "usable_bytes": gpu.usable_bytes,
        "compute_capability": gpu.compute_capability,
        "gemm_flops": gpu.gemm_flops,
        "attention_flops": gpu.attention_flops,
        "memory_bytes_per_s": gpu.memory_bytes_per_s,
        "pcie_bytes_per_s": gpu.pcie_bytes_per_s,
        "link_bytes_per_s": gpu.link_bytes_per_s,
    }
