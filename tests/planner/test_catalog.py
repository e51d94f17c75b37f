"""Models and GPUs by name."""

from __future__ import annotations

import pytest

from planner.attention_kernels import candidates
from planner.catalog.gpus import GPUS, cpu_spec
from planner.catalog.models import MODELS, nearest_models
from tests.planner.plans import catalog_model, cluster_of, issue_of, plan_of

# safetensors metadata of each repository on the hub
TOTALS = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mistral-7B-Instruct-v0.2": 7_241_732_096,
    "mistralai/Mistral-Nemo-Instruct-2407": 12_247_782_400,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "01-ai/Yi-1.5-9B-Chat": 8_829_407_232,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "Qwen/Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": 140_630_071_296,
    "Qwen/Qwen2-VL-2B-Instruct": 2_208_985_600,
    "Qwen/Qwen2-VL-7B-Instruct": 8_291_375_616,
    "Qwen/Qwen2.5-VL-3B-Instruct": 3_754_622_976,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "Qwen/Qwen2.5-VL-72B-Instruct": 73_410_777_344,
    "Qwen/Qwen3-VL-4B-Instruct": 4_437_815_808,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-7b": 8_537_680_896,
    "google/gemma-3-270m": 268_098_176,
    "google/gemma-3-1b-it": 999_885_952,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "01-ai/Yi-1.5-6B": 6_061_035_520,
    "01-ai/Yi-1.5-34B": 34_388_917_248,
    "deepseek-ai/deepseek-coder-6.7b-instruct": 6_740_512_768,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-Small-24B-Instruct-2501": 23_572_403_200,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
}


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_parameter_totals_are_those_of_the_repositories(name: str, total: int) -> None:
    assert catalog_model(name).num_parameters == total


@pytest.mark.parametrize("name", MODELS)
def test_every_config_of_the_catalog_has_a_shape(name: str) -> None:
    assert catalog_model(name).name == name


def test_a_model_that_does_not_exist_has_neighbours() -> None:
    assert "Qwen/Qwen3-8B" in nearest_models("Qwen/Qwen3-7B")


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_gpus_are_possible(gpu) -> None:
    assert 0.95 * gpu.memory_bytes < gpu.usable_bytes < gpu.memory_bytes
    assert gpu.fp32_flops < gpu.gemm_flops
    assert gpu.attention_flops < gpu.gemm_flops
    assert gpu.pcie_bytes_per_s < gpu.memory_bytes_per_s


def test_at_least_forty_models_that_people_tune_are_there() -> None:
    assert len({catalog_model(name).num_parameters for name in MODELS}) >= 40


def test_gpus_that_people_own_are_there() -> None:
    owned = (
        "T4", "V100-16G", "V100-32G", "RTX-2080-Ti", "RTX-3090", "RTX-4090", "RTX-5090", "A10", "L4", "L40S",
        "RTX-A6000", "A100-40G", "A100-80G", "H100-80G", "H200", "B200", "MI300X",
    )  # fmt: skip
    assert set(owned) <= set(GPUS)


def test_a_plan_for_amd_is_unverified_and_uses_no_kernel_of_nvidia() -> None:
    plan = plan_of({"lora": {}, "gradient_checkpointing": {}, "fused_loss": {}}, cluster=cluster_of("MI300X"))
    assert plan.verdict == "unverified"
    assert "AMD GPUs" in issue_of(plan, "never-measured").what
    packages = {"flash-attn": "2.8", "flash-attn-4": "4.0"}
    found = candidates(capability=(9, 4), dtype="bfloat16", head_dim=128, packages=packages, version="auto")
    assert found.names == ("flash2", "torch")
    asked = candidates(capability=(9, 4), dtype="bfloat16", head_dim=128, packages=packages, version="4")
    assert "AMD gfx942" in asked.out["flash4"]


def test_cpu_rates_grow_with_the_cores_of_the_process() -> None:
    assert cpu_spec(2**34, 4).gemm_flops == 4 * cpu_spec(2**34, 1).gemm_flops
