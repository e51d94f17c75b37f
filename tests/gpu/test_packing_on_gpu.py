"""Packed samples on a GPU: each as if alone, for every kernel that this device can use. Twin of test_pack_isolation."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from core.attention.choose import BUILDERS, installed_packages
from core.data.row import Row
from core.train.setup import TrainingSetup
from planner.attention_kernels import candidates
from planner.types import OptimizationSetting
from tests.core.model.tiny_models import VOCABULARY, random_row, setting, tiny_model, tiny_setup
from tests.core.model.token_losses import token_losses

pytestmark = [pytest.mark.gpu(1), pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
CUDA = torch.device("cuda")
SHAPE = {"heads": 8, "kv_heads": 2, "head_dim": 64, "layers": 2, "max_position_embeddings": 1024}
LENGTHS = (150, 3, 300, 80)
KEEPING = setting("gradient_checkpointing", save_attention=True, kept_layers=0)
PATHS: dict[str, tuple[str, tuple[OptimizationSetting, ...]]] = {
    "plain": ("module", ()),
    "head groups, kept attention": ("module", (setting("fake_parallel", groups=2), KEEPING)),
    "layers": ("layer", (KEEPING,)),
    "layers, head groups": ("layer", (setting("fake_parallel", groups=2), KEEPING)),
}
KERNELS = ("flash4", "flash3", "flash2", "cudnn", "torch", "reference")


def pack() -> Row:
    return random_row(LENGTHS, first_target=2)


def pieces(row: Row) -> list[Row]:
    """Each sample of the pack as a row of its own."""
    return [
        Row(
            input_ids=row.input_ids[begin:end], labels=row.labels[begin:end], position_ids=row.position_ids[begin:end],
            cu_seqlens=(0, end - begin), sample_ids=(0,), num_targets=int((row.labels[begin:end] >= 0).sum()),
        )
        for begin, end in pairwise(row.cu_seqlens)
    ]  # fmt: skip


def with_another_first_sample(row: Row) -> Row:
    ids = row.input_ids.clone()
    ids[: LENGTHS[0]] = (ids[: LENGTHS[0]] + 7) % VOCABULARY
    return Row(
        input_ids=ids, labels=row.labels, position_ids=row.position_ids, cu_seqlens=row.cu_seqlens,
        sample_ids=row.sample_ids, num_targets=row.num_targets,
    )  # fmt: skip


def run_of(path: str, dtype: torch.dtype) -> TrainingSetup:
    engine, optimizations = PATHS[path]
    adapters = (setting("lora", rank=4, adapter_dtype=str(dtype).removeprefix("torch.")),) if engine == "layer" else ()
    return tiny_setup(
        tiny_model(dtype=dtype, **SHAPE).to(CUDA), *adapters, *optimizations, device=CUDA, engine=engine,
        dtype=str(dtype).removeprefix("torch."), max_length=1024,
    )  # fmt: skip


def losses_alone(setup: TrainingSetup, row: Row) -> Tensor:
    return torch.cat([token_losses(setup, piece) for piece in pieces(row)])


@pytest.mark.parametrize("path", PATHS)
def test_in_float32_each_sample_has_the_losses_it_has_alone(path):
    row, setup = pack(), run_of(path, torch.float32)
    packed = token_losses(setup, row)
    assert (packed != 0).sum() == row.num_targets
    assert (packed - losses_alone(setup, row)).abs().max() < 1e-5
    changed = token_losses(setup, with_another_first_sample(row))
    assert not torch.equal(changed[: LENGTHS[0]], packed[: LENGTHS[0]])
    assert torch.equal(changed[LENGTHS[0] :], packed[LENGTHS[0] :])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", KERNELS)
def test_in_bfloat16_a_pack_is_as_near_to_float32_as_its_samples_alone(name, path):
    found = candidates(
        capability=torch.cuda.get_device_capability(), dtype="bfloat16", head_dim=SHAPE["head_dim"],
        packages=installed_packages(), version="auto",
    )  # fmt: skip
    if name not in (*found.names, "reference"):
        pytest.skip(f"this GPU and these packages do not offer {name}")
    row, setup = pack(), run_of(path, torch.bfloat16)
    setup.attention.kernel = BUILDERS[name]()
    exact = losses_alone(run_of("plain", torch.float32), row)
    packed, alone = token_losses(setup, row), losses_alone(setup, row)
    assert (packed - exact).norm() <= 1.5 * (alone - exact).norm() + 1e-3 * exact.norm()
    changed = token_losses(setup, with_another_first_sample(row))
    assert not torch.equal(changed[: LENGTHS[0]], packed[: LENGTHS[0]])
    assert torch.equal(changed[LENGTHS[0] :], packed[LENGTHS[0] :])
