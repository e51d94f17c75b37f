"""The closed form, dry runs of the installed versions, and one H200: three ways to the same bytes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import mean

import pytest

from app.services.hardware import parse_cluster
from app.services.planning import plan_resolved
from app.services.resolve import resolve
from app.services.verify import cases_of, verify
from core.verify.dry_run import dry_run
from planner.catalog.models import MODELS
from planner.types import Preset

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
MEASURED = RESULTS / "2026-11-29-h200-plan-against-measured.csv"
LAYER_ROWS = RESULTS / "2026-11-29-h200-engines.csv"
QWEN = "Qwen/Qwen2.5-7B-Instruct"
CUBLAS_WORKSPACES = 64 * 1024**2  # of a Hopper GPU, in the allocator and no tensor
# the peak is in the layers or in the stock loss; the chunked loss has changed since
ROWS = ("stock-fp32-8192", "full-0.5b-stock-8192", "fused-fp32-8192")
LONG_ROWS = ("fused-bf16-65536", "fused-fp32-autocast-8192", "fake-parallel-4-bf16-32768", "llama-fused-bf16-65536")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ROWS, *(pytest.param(name, marks=pytest.mark.soak) for name in LONG_ROWS)])
def test_a_dry_run_holds_what_an_h200_held(name: str) -> None:
    with MEASURED.open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["row"] == name)
    values = {
        "model": row["model"],
        "max_length": int(row["length"]),
        "engine": "module",
        "data": {"train": ["random"]},
    }
    preset = Preset(name=name, description="", values={**values, **json.loads(row["values"])})
    told = dry_run(resolve(preset, cluster=parse_cluster("H200")).config, MODELS[row["model"]])
    held = max(size for instant, size in told.by_instant.items() if not instant.startswith("evaluation"))
    assert held + CUBLAS_WORKSPACES == pytest.approx(int(row["measured_allocated"]), rel=3e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "length", "tolerance"),
    # at 8K, where the MLP is one tile, the card held 30 MiB more; it is not known yet what of
    [
        ("layer", 8192, 2e-3),
        pytest.param("layer", 32768, 3e-4, marks=pytest.mark.soak),
        pytest.param("layer-lean", 32768, 3e-4, marks=pytest.mark.soak),
    ],
)
def test_a_dry_run_of_the_layer_engine_holds_what_an_h200_held(engine: str, length: int, tolerance: float) -> None:
    """Attention by FlashAttention-4; "lean" has 2 head groups and all layers but one in host memory."""
    with LAYER_ROWS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["engine"] == engine]
    row = next(row for row in rows if int(row["length"]) == length)
    values = {"model": QWEN, "max_length": length, "engine": "layer", "data": {"train": ["random"]}}
    preset = Preset(name="row", description="", values={**values, **json.loads(row["values"])})
    told = dry_run(resolve(preset, cluster=parse_cluster("H200")).config, MODELS[QWEN], kernel="flash4")
    held = max(size for instant, size in told.by_instant.items() if not instant.startswith("evaluation"))
    assert held + CUBLAS_WORKSPACES == pytest.approx(int(row["allocated"]), rel=tolerance)


LAYER_UPDATES = {
    "in place": {"optim": "adamw_torch_fused"},
    "tensors at once": {"optim": "adamw_torch"},
    "float32 masters": {"optim": "adamw_torch", "master_weights": "fp32"},
    "float32 masters, tied head": {"optim": "adamw_torch", "master_weights": "fp32"},
    "GaLore": {"optim": "adamw_torch_fused", "galore": {"rank": 128}},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", LAYER_UPDATES)
def test_updates_within_the_backward_hold_what_is_planned(way: str) -> None:
    model = "Qwen/Qwen2.5-0.5B" if way in ("in place", "float32 masters, tied head") else QWEN
    values = {
        "model": model, "max_length": 2048, "engine": "module", "data": {"train": ["random"]}, "dtype": "bfloat16",
        "gradient_accumulation_steps": 1, "max_grad_norm": 0.0, "gradient_checkpointing": True, "fused_loss": True,
        "update": "layer", **LAYER_UPDATES[way],
    }  # fmt: skip
    resolved = resolve(Preset(name=way, description="", values=values), cluster=parse_cluster("H200"))
    planned = plan_resolved(resolved).gpus[0].allocated
    told = dry_run(resolved.config, MODELS[model])
    for instant, held in told.by_instant.items():
        over = planned.bytes_at(instant) - held - (0 if instant == "load" else CUBLAS_WORKSPACES)
        # a layer's update is planned from above: activations that are gone are counted in part, and a dry run does not
        # see what a decomposition holds
        spare = 0.05 if instant in ("attention_backward", "backward_end") else 0.003
        assert -0.003 * held <= over <= spare * held, instant


@pytest.mark.soak  # six minutes; tests/planner/test_recorded_dry_runs.py holds plans to its figures
@pytest.mark.timeout(1800)
def test_models_of_every_family_on_the_installed_versions() -> None:
    """`longfit verify` without arguments, both engines: mean 0.3 %, worst 1 %, nothing off."""
    done = list(verify(cases_of(())))
    errors = [abs(verified.peak.error) for verified in done]
    assert len(done) >= 100
    assert mean(errors) <= 0.003
    assert max(errors) <= 0.01
    assert [(v.case.title, v.case.resolved.model.name, v.off) for v in done if v.off] == []
