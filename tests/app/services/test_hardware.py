"""Hardware by name, and the GPUs that a run would really see."""

from __future__ import annotations

import pytest

from app.services.hardware import find_gpu, parse_cluster, preset_cluster, visible_devices
from planner.catalog.gpus import GPUS
from planner.errors import ConfigError

UUIDS = ("GPU-aa11", "GPU-bb22", "GPU-bb33")


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        (None, (0, 1, 2)), ("", ()), ("2,0", (2, 0)), ("GPU-bb3", (2,)), ("0,7,1", (0,)), ("GPU-bb", ()), ("1,1", (1,)),
        ("-1", ()), (" 1 , GPU-aa11", (1, 0)),
    ],
)  # fmt: skip
def test_visible_devices_are_those_that_cuda_would_show(listed: str | None, seen: tuple[int, ...]) -> None:
    variables = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert visible_devices(UUIDS, variables) == seen


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("A10", "A10"), ("a10", "A10"), ("NVIDIA A10", "A10"), ("rtx 4090", "RTX-4090"), ("rtx4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"), ("H100", "H100-80G"), ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("NVIDIA A100-PCIE-40GB", "A100-40G"), ("NVIDIA H100 80GB HBM3", "H100-80G"), ("NVIDIA H200", "H200"),
        ("Tesla V100-SXM2-32GB", "V100-32G"), ("Tesla T4", "T4"),
    ],
)  # fmt: skip
def test_a_gpu_is_found_as_people_and_drivers_write_it(name: str, key: str) -> None:
    assert find_gpu(name) is GPUS[key]


def test_an_unknown_gpu_is_answered_with_near_names() -> None:
    with pytest.raises(ConfigError, match=r"No GPU named 'A100-8G'.*A100-80G"):
        find_gpu("A100-8G")


def test_a_count_stands_before_the_name() -> None:
    cluster = parse_cluster("2xA10")
    assert (cluster.num_gpus, cluster.gpu.name, cluster.source) == (2, find_gpu("A10").name, "assumed")
    assert parse_cluster("3 x cpu").gpu.kind == "cpu"
    with pytest.raises(ConfigError, match="asks for 0 GPUs"):
        parse_cluster("0xA10")


def test_an_unknown_key_of_hardware_is_named() -> None:
    with pytest.raises(ConfigError, match=r"hardware: unknown key 'cuont'.*'count'"):
        preset_cluster({"gpu": "A10", "cuont": 2})
