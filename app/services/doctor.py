"""Is this installation sound? Every check is a fact with a word for how bad it is. Used by `longfit doctor`.

Nothing heavy is imported: torch is found by its files and metadata.
"""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from app.services.extras import DISTRIBUTION, extra_names, installed_version, requirements
from app.services.gpu_status import DriverStatus, probe_gpus
from app.services.locations import cache_dir, default_runs_dir
from app.views.format import format_bytes

Level = Literal["ok", "note", "warning", "error"]

OWN_PACKAGES = ("app", "core", "planner", "presets")
LEAST_PYTHON = (3, 11)
LOW_DISK_BYTES = 10 * 1024**3  # a checkpoint of a 7B LoRA with its optimizer is about 2 GiB, a 7B download 15
LOW_MEMORY_BYTES = 4 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """``error``: something that is needed is missing or wrong. ``note``: something optional is not there."""

    name: str
    level: Level
    words: str
    fix: str = ""


def run_checks() -> tuple[Check, ...]:
    driver = probe_gpus()
    torch = torch_build()
    return (
        check_python(sys.version_info[:3]),
        *check_own_packages(loaded_from(OWN_PACKAGES), claimed_by(OWN_PACKAGES)),
        *check_requirements(),
        check_torch(torch, driver),
        check_driver(driver),
        *check_extras(),
        check_memory(),
        *check_disks({"runs": default_runs_dir(), "cache": cache_dir()}),
    )


def check_python(version: Sequence[int]) -> Check:
    words = ".".join(str(part) for part in version)
    if tuple(version) < LEAST_PYTHON:
        return Check(name="python", level="error", words=f"{words} is too old", fix="Use Python 3.11 or newer.")
    return Check(name="python", level="ok", words=f"{words} ({sys.executable})")


def loaded_from(packages: Iterable[str]) -> dict[str, str]:
    """Package -> the folder it is really imported from; "" when it cannot be imported."""
    folders: dict[str, str] = {}
    for name in packages:
        try:
            folders[name] = str(Path(next(iter(importlib.import_module(name).__path__))).resolve())
        except (ImportError, AttributeError, StopIteration):
            folders[name] = ""
    return folders


def claimed_by(packages: Iterable[str]) -> dict[str, list[str]]:
    """Package -> the installed distributions that say they provide it."""
    owners = metadata.packages_distributions()
    return {name: sorted(set(owners.get(name, ()))) for name in packages}


def check_own_packages(folders: Mapping[str, str], owners: Mapping[str, Sequence[str]]) -> tuple[Check, ...]:
    """The names app, core and planner are generic: another project's may stand before ours on the path."""
    home = str(Path(__file__).resolve().parents[2])
    checks = []
    for name, folder in folders.items():
        others = [owner for owner in owners.get(name, ()) if owner != DISTRIBUTION]
        if folder != str(Path(home, name)):
            checks.append(Check(
                name=f"package {name}", level="error",
                words=f"imported from {folder or 'nowhere'}, not from {Path(home, name)}",
                fix="Start longfit from another folder, and take the other one off PYTHONPATH.",
            ))  # fmt: skip
        elif others:
            checks.append(Check(
                name=f"package {name}", level="error", words=f"also installed by {', '.join(others)}",
                fix=f"Uninstall {' or '.join(others)}, or give longfit an environment of its own.",
            ))  # fmt: skip
    return tuple(checks) or (Check(name="packages", level="ok", words=f"{', '.join(folders)} from {home}"),)


def check_requirements() -> tuple[Check, ...]:
    needed = requirements()
    wrong = [status for status in needed if not status.is_satisfied]
    if wrong:
        return tuple(
            Check(name="requirement", level="error", words=status.words,
                  fix=f'pip install "{status.package}{status.wanted}"')
            for status in wrong
        )  # fmt: skip
    version = installed_version(DISTRIBUTION)
    home = f"{DISTRIBUTION} {version}" if version else f"{DISTRIBUTION} from its source tree"
    return (Check(name="installation", level="ok", words=f"{home}, all {len(needed)} requirements met"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    version: str
    cuda: str | None  # the CUDA version it was built for; None: a CPU build


def torch_build() -> TorchBuild | None:
    """What torch/version.py says, without importing torch (which takes seconds)."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        text = Path(next(iter(spec.submodule_search_locations)), "version.py").read_text("utf-8")
    except OSError:
        return None
    version, cuda = (re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)", text, re.M) for name in ("__version__", "cuda"))
    return TorchBuild(version=version[1] if version else "unknown", cuda=cuda[1] if cuda else None)


def check_torch(torch: TorchBuild | None, driver: DriverStatus) -> Check:
    if torch is None:
        return Check(name="torch", level="error", words="not installed", fix="pip install torch")
    if torch.cuda is None and driver.gpus:
        return Check(name="torch", level="error", words=f"{torch.version} is a build for CPU, and there is a GPU",
                     fix="pip install --force-reinstall torch, from an index with CUDA builds")  # fmt: skip
    return Check(name="torch", level="ok", words=f"{torch.version} for {'CUDA ' + torch.cuda if torch.cuda else 'CPU'}")


def check_driver(driver: DriverStatus) -> Check:
    if driver.problem:
        # Without a card there is nothing to mend; with one, the words say what to do.
        level: Level = "note" if "no NVIDIA driver" in driver.problem or "shows no GPU" in driver.problem else "warning"
        return Check(name="GPU", level=level, words=f"{driver.problem}; plans and runs use CPU processes")
    lost = [f"GPU {gpu.index}: {gpu.problem}" for gpu in driver.gpus if gpu.problem]
    if lost:
        return Check(name="GPU", level="warning", words="; ".join(lost), fix="Reset the card or reboot.")
    names = ", ".join(gpu.name for gpu in driver.gpus)
    return Check(name="GPU", level="ok", words=f"{names}; driver {driver.driver_version or 'n/a'}")


def check_extras() -> tuple[Check, ...]:
    checks = []
    for extra in extra_names():
        if extra == "test":  # of those who work on longfit itself
            continue
        statuses = requirements(extra)
        wrong = [status.words for status in statuses if not status.is_satisfied]
        words = "; ".join(wrong) if wrong else ", ".join(f"{s.package} {s.installed}" for s in statuses)
        checks.append(Check(name=f"extra {extra}", level="note" if wrong else "ok", words=words,
                            fix=f'pip install "{DISTRIBUTION}[{extra}]"' if wrong else ""))  # fmt: skip
    return tuple(checks)


def check_memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    words = f"{format_bytes(memory.available)} free of {format_bytes(memory.total)}"
    level: Level = "warning" if memory.available < LOW_MEMORY_BYTES else "ok"
    return Check(name="RAM", level=level, words=words)


def check_disks(folders: Mapping[str, Path]) -> tuple[Check, ...]:
    return tuple(_check_disk(name, folder) for name, folder in folders.items())


def _check_disk(name: str, folder: Path) -> Check:
    """The folder may not exist yet: then its first existing parent counts."""
    existing = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check(name=f"disk, {name}", level="error", words=f"{existing}: {error.strerror}")
    words = f"{format_bytes(free)} free in {folder}"
    if free < LOW_DISK_BYTES:
        return Check(
            name=f"disk, {name}", level="warning", words=words, fix="Free space: checkpoints and models are large."
        )
    return Check(name=f"disk, {name}", level="ok", words=words)
