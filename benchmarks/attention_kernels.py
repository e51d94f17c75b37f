"""Every attention kernel of this GPU against float32, as a multiple of the error of torch's flash path, and its speed.

    python benchmarks/attention_kernels.py OUT.csv

Forward, log-sum-exp and the three gradients; dense and packed; query/KV heads 28/4, 32/8, 9/3; head dims 64, 96, 128,
256; bfloat16. ``ratio`` is the kernel's relative error over that of torch's flash kernel on the same inputs, at most 2
to be accepted. Speed (28/4 heads of 128, forward and backward, causal, median of 7 after 2) is timed afterwards, alone.

A kernel and head dim is a process of its own (FlashAttention-4, which is compiled on first use for each ratio of heads:
each ratio too): they compile side by side, and a crash loses nothing but itself. After 90 seconds what is not done is
written down as such.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

GROUPS = ((28, 4), (32, 8), (9, 3))
HEAD_DIMS = (64, 96, 128, 256)
NUM_TOKENS = 2048
LAYOUTS: dict[str, tuple[int, ...]] = {"dense": (0, NUM_TOKENS), "packed": (0, 3, 700, 1531, NUM_TOKENS)}
QUANTITIES = ("out", "lse", "dq", "dk", "dv")
TIMED_TOKENS = (8192, 32768)
ACCEPTED_RATIO = 2.0
DEADLINE_S = 90.0
COLUMNS = (
    "kernel", "name", "kind", "layout", "heads", "kv_heads", "head_dim", "tokens",
    *(f"{q}_error" for q in QUANTITIES), *(f"{q}_ratio" for q in QUANTITIES), "accepted", "seconds", "tflops",
    "problem", "gpu", "capability", "torch", "commit", "date",
)  # fmt: skip


def errors_of(kernel_key: str, head_dim: int, groups: tuple[tuple[int, int], ...]) -> None:
    """One JSON line for each combination, flushed as it is done."""
    import torch

    from core.attention.choose import BUILDERS
    from core.attention.torch_kernels import TorchFlashKernel

    kernel, flash = BUILDERS[kernel_key](), TorchFlashKernel()
    for heads, kv_heads in groups:
        for layout, bounds in LAYOUTS.items():
            row: dict[str, Any] = {
                "kernel": kernel_key, "name": kernel.name, "kind": "error", "layout": layout, "heads": heads,
                "kv_heads": kv_heads, "head_dim": head_dim, "tokens": NUM_TOKENS,
            }  # fmt: skip
            try:
                inputs = _inputs(heads, kv_heads, head_dim, NUM_TOKENS)
                exact = _exact(inputs, bounds)
                ours = _distances(kernel, inputs, bounds, exact)
                theirs = _distances(flash, inputs, bounds, exact)
                ratios = {f"{q}_ratio": round(a / b, 3) for q, a, b in zip(QUANTITIES, ours, theirs)}
                row |= {f"{q}_error": f"{a:.3e}" for q, a in zip(QUANTITIES, ours)} | ratios
                # a log-sum-exp is float32: one rounding of it is as near as any kernel can be asked to be
                row["accepted"] = all(
                    a <= max(ACCEPTED_RATIO * b, 1e-6 if q == "lse" else 0.0)
                    for q, a, b in zip(QUANTITIES, ours, theirs)
                )
            except Exception as error:  # the next combination has its chance
                row |= {"accepted": False, "problem": _words(error)}
            print(json.dumps(row), flush=True)
    torch.cuda.synchronize()


def speed_of(kernel_key: str) -> None:
    import torch

    from core.attention.choose import BUILDERS
    from core.attention.segments import backward_segments, forward_segments

    kernel = BUILDERS[kernel_key]()
    for tokens in TIMED_TOKENS:
        for layout in ("dense", "packed"):
            quarter = tokens // 4
            bounds = (0, tokens) if layout == "dense" else (0, quarter, 2 * quarter, 3 * quarter, tokens)
            q, k, v, dout = _inputs(28, 4, 128, tokens)
            seconds = []
            for _ in range(9):
                torch.cuda.synchronize()
                started = time.perf_counter()
                out, lse = forward_segments(kernel, q, k, v, bounds, 128**-0.5)
                backward_segments(kernel, dout, q, k, v, out, lse, bounds, 128**-0.5)
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - started)
            median = statistics.median(seconds[2:])
            pairs = sum((end - start) ** 2 / 2 for start, end in pairwise(bounds))
            flops = 3.5 * 4 * 28 * 128 * pairs
            row = {
                "kernel": kernel_key, "name": kernel.name, "kind": "speed", "layout": layout, "heads": 28,
                "kv_heads": 4, "head_dim": 128, "tokens": tokens, "seconds": f"{median:.6f}",
                "tflops": round(flops / median / 1e12, 1),
            }  # fmt: skip
            print(json.dumps(row), flush=True)


def _inputs(heads: int, kv_heads: int, head_dim: int, tokens: int) -> list[Any]:
    import torch

    generator = torch.Generator("cuda").manual_seed(0)
    return [
        torch.randn(1, tokens, n, head_dim, device="cuda", generator=generator).bfloat16().transpose(1, 2)
        for n in (heads, kv_heads, kv_heads, heads)
    ]


def _run(kernel: Any, inputs: list[Any], bounds: tuple[int, ...]) -> list[Any]:
    from core.attention.segments import backward_segments, forward_segments

    q, k, v, dout = inputs
    scale = q.shape[-1] ** -0.5
    out, lse = forward_segments(kernel, q, k, v, bounds, scale)
    return [out, lse, *backward_segments(kernel, dout, q, k, v, out, lse, bounds, scale)]


def _exact(inputs: list[Any], bounds: tuple[int, ...]) -> list[Any]:
    from core.attention.kernel import ReferenceKernel

    return _run(ReferenceKernel(), [x.float() for x in inputs], bounds)


def _distances(kernel: Any, inputs: list[Any], bounds: tuple[int, ...], exact: list[Any]) -> list[float]:
    got = _run(kernel, inputs, bounds)
    return [((ours.float() - want).norm() / want.norm()).item() for ours, want in zip(got, exact)]


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]


def main(out: str) -> int:
    started = time.monotonic()
    import torch

    from core.attention.choose import installed_packages
    from planner.attention_kernels import candidates

    capability = torch.cuda.get_device_capability()
    found = candidates(
        capability=capability, dtype="bfloat16", head_dim=128, packages=installed_packages(), version="auto"
    )
    facts = {
        "gpu": torch.cuda.get_device_name(), "capability": f"sm{capability[0]}{capability[1]}",
        "torch": torch.__version__, "commit": _commit(), "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"kernel": name, "kind": "error", "problem": reason} for name, reason in found.out.items()
    ]
    jobs = [
        (name, head_dim, which)
        for name in found.names
        for head_dim in HEAD_DIMS
        for which in (range(len(GROUPS)) if name == "flash4" else ("all",))
    ]
    with tempfile.TemporaryDirectory() as folder:
        outputs = {job: Path(folder) / "-".join(map(str, job)) for job in jobs}
        children = {job: _child(outputs[job], "--errors", *map(str, job)) for job in jobs}
        for job, child in children.items():
            rows += _collected(job, child, outputs[job], started + DEADLINE_S - 20)
        for name in found.names:
            path = Path(folder) / f"speed-{name}"
            child = _child(path, "--speed", name)
            rows += _collected((name, 128, 0), child, path, started + DEADLINE_S, kind="speed")
    with Path(out).open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=COLUMNS)
        writer.writeheader()
        writer.writerows({**row, **facts} for row in rows)
    for row in rows:
        if row.get("kind") == "speed" or not row.get("accepted"):
            print({key: row[key] for key in COLUMNS if row.get(key) not in (None, "")}, flush=True)
    tested = [row for row in rows if "accepted" in row]
    print(f"{sum(row['accepted'] for row in tested)} of {len(tested)} accepted, {time.monotonic() - started:.0f} s")
    return 0 if tested and all(row["accepted"] for row in tested) else 1


def _child(path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with path.open("wb") as output, path.with_suffix(".err").open("wb") as errors:
        return subprocess.Popen([sys.executable, __file__, *arguments], stdout=output, stderr=errors)


def _collected(
    job: tuple[str, int, int | str], child: subprocess.Popen[bytes], path: Path, deadline: float, kind: str = "error"
) -> list[dict[str, Any]]:
    try:
        code = child.wait(timeout=max(0.1, deadline - time.monotonic()))
        problem = "" if code == 0 else f"exit code {code}: {path.with_suffix('.err').read_text()[-300:]}"
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        problem = "out of time"
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
    if problem:
        rows.append({"kernel": job[0], "head_dim": job[1], "kind": kind, "accepted": False, "problem": problem})
    return rows


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return os.environ.get("LONGFIT_COMMIT", done.stdout.strip())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    if sys.argv[1] == "--errors":
        chosen = GROUPS if sys.argv[4] == "all" else (GROUPS[int(sys.argv[4])],)
        errors_of(sys.argv[2], int(sys.argv[3]), chosen)
    elif sys.argv[1] == "--speed":
        speed_of(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1]))
