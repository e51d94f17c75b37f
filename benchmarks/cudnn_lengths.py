"""What a length costs that cuDNN has not met, beside torch's flash kernel, on one GPU: seconds, bytes, errors.

    python benchmarks/cudnn_lengths.py OUT.csv [LENGTH ...]

One head group of the layer engine (8 query heads on 2 KV heads of 128, bf16, causal): output and gradient are parts of
whole ones, as there. Errors are relative, against torch's flash kernel. The first call builds the graph.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

QUERY_HEADS, KV_HEADS, HEAD_DIM, GROUPS = 8, 2, 128, 4
LENGTHS = (65536, 65600, 65544, 65537, 100001, 200000)


def rows_of(tokens: int) -> list[dict[str, Any]]:
    from core.attention.torch_kernels import CudnnKernel, TorchFlashKernel

    generator = torch.Generator("cuda").manual_seed(1)

    def heads(count: int) -> Tensor:
        x = torch.randn(1, tokens, count, HEAD_DIM, device="cuda", generator=generator)
        return x.bfloat16().transpose(1, 2)

    def group(whole: Tensor) -> Tensor:
        return whole[:, QUERY_HEADS : 2 * QUERY_HEADS]

    q, k, v = heads(QUERY_HEADS), heads(KV_HEADS), heads(KV_HEADS)
    kept, dout = group(heads(GROUPS * QUERY_HEADS)), group(heads(GROUPS * QUERY_HEADS))
    scale, rows, wanted = HEAD_DIM**-0.5, [], None
    for kernel in (TorchFlashKernel(), CudnnKernel()):
        row: dict[str, Any] = {
            "kernel": kernel.key, "tokens": tokens, "query_heads": QUERY_HEADS, "kv_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
        }  # fmt: skip
        for prefix in ("first_", ""):
            (out, lse), row[f"{prefix}forward_s"] = timed(kernel.forward, q, k, v, causal=True, scale=scale)
            kept.copy_(out)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            grads, row[f"{prefix}backward_s"] = timed(
                kernel.backward, dout, q, k, v, kept, lse, causal=True, scale=scale
            )
        row["backward_peak_bytes_per_token"] = round((torch.cuda.max_memory_allocated() - before) / tokens, 1)
        got = (out, lse, *grads)
        if wanted is not None:
            names = ("out_error", "lse_error", "dq_error", "dk_error", "dv_error")
            row |= {name: relative(x, y) for name, x, y in zip(names, got, wanted)}
        wanted = got
        rows.append(row)
    return rows


def timed(call: Callable[..., Any], *args: Tensor, **options: Any) -> tuple[Any, float]:
    torch.cuda.synchronize()
    started = time.perf_counter()
    result = call(*args, **options)
    torch.cuda.synchronize()
    return result, round(time.perf_counter() - started, 4)


def relative(x: Tensor, y: Tensor) -> float:
    return round(((x.float() - y.float()).norm() / y.float().norm()).item(), 6)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    parser = argparse.ArgumentParser(description="cuDNN at lengths that it has not met")
    parser.add_argument("out")
    parser.add_argument("lengths", nargs="*", type=int, default=list(LENGTHS))
    args = parser.parse_args()
    from benchmarks.gpu_rows import write_gpu_rows

    write_gpu_rows(args.out, [row for tokens in args.lengths for row in rows_of(tokens)])
