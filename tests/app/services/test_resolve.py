"""A preset becomes one RunConfig, or one clear message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.services.hardware import parse_cluster
from app.services.presets import load_preset
from app.services.resolve import Resolved, resolve
from app.services.yaml_text import load_yaml
from planner.errors import ConfigError
from planner.types import ParallelDegrees, Preset

DATA = Path(__file__).parents[2] / "data"
VALUES: dict[str, Any] = {"model": "Qwen/Qwen2.5-7B-Instruct", "max_length": 8192, "data": {"train": ["a.jsonl"]}}


def resolved(gpus: str = "A10", **values: Any) -> Resolved:
    return resolve(Preset(name="p", description="", values={**VALUES, **values}), cluster=parse_cluster(gpus))


def test_defaults_are_those_of_the_config() -> None:
    config = resolved().config
    assert config.method == "full"
    assert config.learning_rate == 1e-4
    assert config.data.train == ("a.jsonl",)
    assert config.data.over_length == "truncate_right"
    assert not config.autocast


def test_an_optimization_is_switched_on_by_true_a_scalar_or_a_mapping() -> None:
    config = resolved(packing=True, fused_loss=512, lora={"rank": 64}, gradient_checkpointing="true").config
    assert [s.name for s in config.optimizations] == ["lora", "gradient_checkpointing", "fused_loss", "packing"]
    assert config.optimization("fused_loss").as_dict()["chunk_tokens"] == 512
    assert config.optimization("lora").as_dict()["rank"] == 64
    assert config.optimization("lora").as_dict()["targets"] == "all-linear"


def test_the_hash_changes_with_a_value_and_only_then() -> None:
    assert resolved().config.hash() == resolved().config.hash()
    assert resolved().config.hash() != resolved(seed=7).config.hash()


def test_wide_adapters_on_a_narrow_base_get_autocast_unless_told_otherwise() -> None:
    assert resolved(lora=True).config.autocast
    assert not resolved(lora={"adapter_dtype": "bfloat16"}).config.autocast
    assert not resolved(lora=True, dtype="float32").config.autocast
    assert not resolved(lora=True, autocast=False).config.autocast


def test_sequence_parallel_becomes_the_degrees_that_the_heads_allow() -> None:
    assert resolved("2xA10", sequence_parallel=2).config.parallel == ParallelDegrees(data=1, ring=1, ulysses=2)
    config = resolved("2xA10", model="HuggingFaceTB/SmolLM2-135M-Instruct", sequence_parallel=2).config
    assert config.parallel == ParallelDegrees(data=1, ring=2, ulysses=1)
    assert config.optimization("ring").as_dict() == {"degree": 2}
    assert config.optimization("ulysses") is None


def test_gpus_left_over_hold_other_rows() -> None:
    assert resolved("4xA10", sequence_parallel=2).config.parallel == ParallelDegrees(data=2, ring=1, ulysses=2)


def test_sequence_parallel_on_one_gpu_is_refused_with_its_honest_form() -> None:
    with pytest.raises(ConfigError, match=r"over 2 ranks is asked for, on one GPU.*fake_parallel: 2"):
        resolved(sequence_parallel=2)


def test_a_degree_that_does_not_divide_the_heads_is_refused_with_the_legal_ones() -> None:
    with pytest.raises(ConfigError, match=r"28.*\b2\b.*\b4\b"):
        resolved("8xA10", ulysses=8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rat": 1e-4}, r"unknown key 'learning_rat'.*'learning_rate'"),
        ({"lora": {"rnk": 8}}, r"lora: unknown key 'rnk'.*'rank'"),
        ({"data": {"trian": ["a"]}}, r"data: unknown key 'trian'.*'train'"),
        ({"data": {}}, r"'train' is missing"),
        ({"max_length": "16k"}, r"Write max_length: 16384"),
        ({"max_length": "1M"}, r"Write max_length: 1048576"),
        ({"max_length": "16,384"}, r"Write max_length: 16384"),
        ({"learning_rate": "nan"}, r"learning_rate is the text 'nan'\. It must be a number\.$"),
        ({"learning_rate": "1e-5"}, r"learning_rate is the text '1e-5'.*without quotes: learning_rate: 1e-5"),
        ({"max_length": "long"}, r"max_length is the text 'long'.*whole number"),
        ({"max_length": 8.5}, r"max_length is 8\.5.*whole number"),
        ({"gradient_accumulation_steps": 0}, r"gradient_accumulation_steps is 0.*least it can be is 1"),
        ({"packing": "maybe"}, r"packing is 'maybe'.*true, false"),
        ({"lr_scheduler_type": "cosin"}, r"'cosin'.*Did you mean 'cosine'"),
        ({"lora": {"rank": True}}, r"rank is True.*whole number"),
        ({"model": None}, r"'model' is missing"),
        ({"model": "Qwen/Qwen2.5-7B-Instuct"}, r"Did you mean Qwen/Qwen2\.5-7B-Instruct"),
        ({"report_to": ["mlflow"]}, r"'mlflow'.*tensorboard"),
    ],
)
def test_bad_input_gets_one_message_that_names_the_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(**values)


def test_numbers_and_words_as_people_write_them() -> None:
    """The public reports of learning rates read as text, octal seeds and `no` read as a boolean."""
    values = load_yaml((DATA / "k12_sci_notation.yaml").read_text(), where="k12")
    good = {
        k: values[k]
        for k in ("learning_rate", "weight_decay", "max_length", "packing", "gradient_checkpointing", "warmup_ratio")
    }
    config = resolved(**good).config
    assert (config.learning_rate, config.weight_decay, config.max_length, config.warmup_ratio) == (
        1e-5,
        0.01,
        16384,
        0.03,
    )
    assert {s.name for s in config.optimizations} == {"packing", "gradient_checkpointing"}
    with pytest.raises(ConfigError, match=r"seed is 010.*Write 10\."):
        resolved(seed=values["seed"])
    with pytest.raises(ConfigError, match=r"targets is False.*text.*yes, no"):
        resolved(lora={"targets": values["lora_target"]})
    with pytest.raises(ConfigError, match="unknown key 'unknown_option'"):
        resolved(unknown_option=values["unknown_option"])


def test_every_built_in_preset_resolves_for_the_hardware_it_names() -> None:
    from app.services.presets import list_presets

    for preset in list_presets():
        config = resolve(load_preset(preset.name)).config
        assert config.parallel.world == int(preset.hardware["count"])
