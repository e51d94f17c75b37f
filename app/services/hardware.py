"""The hardware to plan for: found on this machine, or named by a person ("2xA10-24G", "cpu", "8xH100")."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.catalog.gpus import GPUS, cpu_spec
from planner.errors import ConfigError
from planner.types import ClusterSpec, Environment, GpuSpec

PACKAGES = (
    "torch", "transformers", "peft", "triton", "liger-kernel", "galore-torch", "bitsandbytes", "flash-attn",
    "flash-attn-3", "flash-attn-4", "datasets", "gradio",
)  # fmt: skip
ASSUMED_HOST_BYTES_PER_GPU = 128 * 1024**3


def parse_cluster(text: str, *, num_nodes: int = 1) -> ClusterSpec:
    """``A10``, ``2xA10``, ``cpu``/``2xcpu`` (processes on this host) or ``here``/``2xhere`` (GPUs of this machine).

    Raises: ConfigError with the nearest names.
    """
    match = re.fullmatch(r"\s*(?:(\d+)\s*[x×*]\s*)?(.+?)\s*", text)
    count = int(match[1]) if match and match[1] else 1
    name = match[2] if match else text
    if count < 1 or count > 4096:
        least_change = min(max(count, 1), 4096)
        raise ConfigError(
            f"{text!r} asks for {count} GPUs.", why="It can be 1 to 4096.", fix=f"Write {least_change}x{name}."
        )
    if name.lower() == "cpu":
        return cpu_cluster(count)
    if name.lower() == "here":
        return detect_cluster(count if match and match[1] else None)
    return ClusterSpec(
        gpu=find_gpu(name), num_gpus_per_node=count, num_nodes=num_nodes, source="assumed",
        host_bytes_per_node=ASSUMED_HOST_BYTES_PER_GPU * count,
    )  # fmt: skip


def find_gpu(name: str) -> GpuSpec:
    """A GPU of the catalog as people or drivers write it: "rtx4090", "A100-80G", "NVIDIA A100-SXM4-80GB".

    Raises: ConfigError with the nearest names.
    """
    words = _words(name)
    same = [
        key for key in GPUS if "".join(sorted(_words(key))) == "".join(sorted(words)) or _plain(key) == _plain(name)
    ]
    within = [key for key in GPUS if _words(key) < words]  # a driver says more than the catalog
    found = same or [key for key in within if len(_words(key)) == max(len(_words(k)) for k in within)]
    found = found or [key for key in GPUS if words and words < _words(key)]  # a person may say less
    if len(found) == 1:
        return GPUS[found[0]]
    near = found or difflib.get_close_matches(name, GPUS, n=3, cutoff=0.3)
    raise ConfigError(
        f"No GPU named {name!r} is in the catalog.",
        why="Several match." if found else "",
        fix=f"Did you mean {' or '.join(near)}?" if near else "`longfit gpus` lists them.",
    )


def _words(name: str) -> set[str]:
    words = re.findall(r"[a-z0-9]+", name.lower().replace("nvidia", "").replace("geforce", ""))
    return {re.sub(r"^(\d+)gb$", r"\1g", word) for word in words}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def preset_cluster(hardware: Mapping[str, Any]) -> ClusterSpec:
    """The hardware a preset is meant for; this machine when it names none. Raises: ConfigError for an unknown key."""
    from app.services.preset_keys import check_keys

    check_keys(hardware, ("gpu", "count", "nodes", "host_gib"), where="hardware")
    if not hardware.get("gpu"):
        return detect_cluster()
    cluster = parse_cluster(f"{hardware.get('count', 1)}x{hardware['gpu']}", num_nodes=int(hardware.get("nodes", 1)))
    if hardware.get("host_gib"):
        cluster = replace(cluster, host_bytes_per_node=int(float(hardware["host_gib"]) * 1024**3))
    return cluster


def parse_bytes(text: str) -> int:
    """``24GB`` is 24 * 10^9, ``22.5GiB`` is 22.5 * 2^30. Raises: ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(K|M|G|T)(i?)B\s*", text, re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{text!r} is no amount of memory.", why="It is a number and a unit.", fix="Write 24GB.")
    power = 1 + "KMGT".index(match[2].upper())
    return int(float(match[1]) * (1024**power if match[3] else 1000**power))


def with_memory_limit(cluster: ClusterSpec, limit_bytes: int) -> ClusterSpec:
    """The same hardware, of whose devices a process may use no more than ``limit_bytes`` in all."""
    return replace(cluster, gpu=replace(cluster.gpu, usable_bytes=limit_bytes))


def cpu_cluster(num_processes: int) -> ClusterSpec:
    """Training processes on this host: each may use its share of the memory that is free now."""
    import psutil

    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ClusterSpec(
        gpu=cpu_spec(int(memory.available // num_processes), max(1, cores // num_processes)),
        num_gpus_per_node=num_processes, host_bytes_per_node=int(memory.available), source="detected",
        disk_free_bytes=free_disk_bytes(),
    )  # fmt: skip


def free_disk_bytes(path: str = ".") -> int | None:
    try:
        import shutil

        return shutil.disk_usage(path).free
    except OSError:
        return None


def detect_gpus() -> tuple[GpuSpec, ...]:
    """The NVIDIA GPUs that a run would see, with the memory that is free now; empty without a driver.

    In the order of the PCI bus (workers are started with CUDA_DEVICE_ORDER=PCI_BUS_ID), CUDA_VISIBLE_DEVICES honoured.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, or a driver that does not answer: there is no GPU to plan for
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        chosen = visible_devices([_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles], os.environ)
        return tuple(gpu for index in chosen if (gpu := _detected(pynvml, handles[index])) is not None)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def visible_devices(uuids: Sequence[str], variables: Mapping[str, str]) -> tuple[int, ...]:
    """Indices of the devices that CUDA_VISIBLE_DEVICES lets a process see: as CUDA does, the list ends at the first
    entry that names no device, and a UUID may be given by its beginning."""
    listed = variables.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return tuple(range(len(uuids)))
    seen: list[int] = []
    for entry in (part.strip() for part in listed.split(",")):
        if entry.isdigit():
            matches = [int(entry)] if int(entry) < len(uuids) else []
        else:
            matches = [index for index, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if len(matches) != 1 or matches[0] in seen:
            break
        seen += matches
    return tuple(seen)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _detected(pynvml: Any, handle: Any) -> GpuSpec | None:
    """None for a card that does not answer: the others can still be used."""
    try:
        name = _text(pynvml.nvmlDeviceGetName(handle))
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    except pynvml.NVMLError:
        return None
    try:
        known = find_gpu(name)
    except ConfigError:
        known = _nearest_by_memory(int(memory.total))
    return replace(
        known, name=name, memory_bytes=int(memory.total), usable_bytes=int(memory.free),
        compute_capability=(capability[0], capability[1]),
    )  # fmt: skip


def _nearest_by_memory(total_bytes: int) -> GpuSpec:
    """Rates for a card outside the catalog: those of the card nearest in memory."""
    return min(GPUS.values(), key=lambda gpu: abs(gpu.memory_bytes - total_bytes))


def detect_cluster(num_gpus: int | None = None) -> ClusterSpec:
    """This machine: its GPUs (the first ``num_gpus``, as the workers take them), or CPU processes without one."""
    gpus = detect_gpus()
    if not gpus:
        return cpu_cluster(num_gpus or 1)
    import psutil

    chosen = gpus[: num_gpus or len(gpus)]
    return ClusterSpec(
        gpu=min(chosen, key=lambda gpu: gpu.usable_bytes),  # the one with least free memory binds
        num_gpus_per_node=len(chosen), host_bytes_per_node=int(psutil.virtual_memory().available), source="detected",
        disk_free_bytes=free_disk_bytes(),
    )  # fmt: skip


def environment_for(cluster: ClusterSpec) -> Environment:
    """What is installed here for the hardware at hand; everything, for imagined hardware."""
    capability = cluster.gpu.compute_capability
    if cluster.source == "assumed":
        return Environment(source="assumed", packages=dict.fromkeys(PACKAGES, "assumed"), compute_capability=capability)
    from importlib import metadata

    packages: dict[str, str] = {}
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return Environment(source="detected", packages=packages, compute_capability=capability)
