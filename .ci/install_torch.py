"""Install torch first and alone, with the download size said before it starts. Called by .ci/setup.

Without an NVIDIA GPU a CPU build is a tenth of the size: pip's own choice when that is one already, else PyTorch's CPU
index, else the default after all.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlparse

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def main(constraints: str) -> int:
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0:
        return 0
    pinned = re.search(r"^torch==(\S+)$", Path(constraints).read_text(), re.M)
    requirement = f"torch=={pinned[1]}" if pinned else "torch>=2.11,<2.15"
    indexes: list[list[str]] = [[]] if has_nvidia_gpu() else [[], ["--index-url", CPU_INDEX], []]
    for last, extra in ((i == len(indexes) - 1, extra) for i, extra in enumerate(indexes)):
        report = dry_run(requirement, extra)
        if report is not None and (last or is_cpu_build(report)):
            break
    else:
        print("torch cannot be found: pip reached no package index.", file=sys.stderr)
        return 5
    size = sum(filter(None, (download_bytes(item["download_info"]["url"]) for item in report)))
    names = ", ".join(f"{item['metadata']['name']} {item['metadata']['version']}" for item in report[:3])
    more = f" and {len(report) - 3} more" if len(report) > 3 else ""
    print(f"Downloading {names}{more}: about {size / 1e6:,.0f} MB.", file=sys.stderr)
    return subprocess.run([*pip(), "install", "--quiet", *extra, requirement]).returncode


def has_nvidia_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def pip() -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def dry_run(requirement: str, extra: list[str]) -> list[dict] | None:
    """What pip would install, torch first; None when this index has nothing or is out of reach."""
    command = [*pip(), "--timeout", "20", "--retries", "1", "install", "--dry-run", "--quiet", "--report", "-", *extra]
    done = subprocess.run([*command, requirement], capture_output=True, text=True)
    if done.returncode != 0:
        return None
    items = json.loads(done.stdout[done.stdout.index("{") :])["install"]
    return sorted(items, key=lambda item: item["metadata"]["name"] != "torch")


def is_cpu_build(report: list[dict]) -> bool:
    """No CUDA library comes along. (macOS and ARM wheels of the default index are such builds without a +cpu mark.)"""
    return not any(item["metadata"]["name"].startswith(("nvidia-", "triton", "cuda-")) for item in report)


def download_bytes(url: str) -> int:
    parts = urlparse(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).stat().st_size
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=20) as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
