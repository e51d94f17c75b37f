from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from core.run.config_file import config_from_yaml, config_to_yaml, read_config, write_config
from planner.errors import ConfigError, RunNotFound
from planner.types import DataConfig, OptimizationSetting, ParallelDegrees, RunConfig
from tests.core.run.run_cases import make_config

FULL = RunConfig(
    name="项目 été: no", model="/models/a b", dtype="bfloat16", autocast=True, max_length=16384,
    rope_scaling=(("type", "yarn"), ("factor", 4.0)),
    data=DataConfig(
        train=("a.jsonl#500", "b.jsonl"), weights=(("a.jsonl#500", 1), ("b.jsonl", 0.5)), eval=("c.jsonl",),
        eval_fraction=0.1, system="1e-5", columns=(("query", "frage"),),
    ),
    parallel=ParallelDegrees(data=2, ring=3, ulysses=4),
    optimizations=(
        OptimizationSetting(name="lora", knobs=(("rank", 64), ("dropout", 0.0), ("targets", "no"), ("merge", False))),
        OptimizationSetting(name="gradient_checkpointing"),
    ),
    num_train_epochs=3, learning_rate=1e-5, adam_epsilon=1e-8, warmup_ratio=0.03, report_to=("tensorboard",),
    deterministic=True,
)  # fmt: skip


@pytest.mark.parametrize("config", [make_config(), FULL], ids=["defaults", "everything"])
def test_the_round_trip_is_exact_down_to_the_hash(tmp_path, config):
    write_config(tmp_path, config)
    again = read_config(tmp_path)
    assert again == config
    assert again.hash() == config.hash()
    assert type(again.num_train_epochs) is type(config.num_train_epochs)


def test_strings_that_look_like_numbers_stay_strings():
    assert config_from_yaml(config_to_yaml(FULL)).data.system == "1e-5"


def changed(**values) -> str:
    return yaml.safe_dump({**yaml.safe_load(config_to_yaml(FULL)), **values})


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (changed(learning_rte=1.0), ["learning_rte", "learning_rate"]),
        (changed(max_length="8192"), ["max_length", "'8192' (str)", "int"]),
        (changed(autocast=1), ["autocast", "1 (int)", "bool"]),
        (changed(seed=True), ["seed", "True (bool)", "int"]),
        (changed(dtype="fp16"), ["dtype", "fp16", "bfloat16"]),
        (changed(schema=2), ["schema 2", "schema 1"]),
        (changed(parallel=None), ["parallel", "None"]),
        (changed(parallel={"data": 1, "rings": 2}), ["rings", "'ring'"]),
        (changed(data={"train": "a.jsonl"}), ["train", "'a.jsonl' (str)", "list"]),
        (changed(data={}), ["data", "'train' is missing"]),
        (changed(rope_scaling=[1]), ["rope_scaling", "mapping"]),
        ("a: [", ["not YAML"]),
        ("- 1", ["mapping"]),
    ],
)
def test_what_we_did_not_write_is_refused_with_the_key(text, facts):
    with pytest.raises(ConfigError) as caught:
        config_from_yaml(text)
    for fact in facts:
        assert fact in str(caught.value)


def test_yaml_cannot_run_code(tmp_path):
    with pytest.raises(ConfigError):
        config_from_yaml(f"!!python/object/apply:os.mkdir ['{tmp_path}/pwned']")
    assert not (tmp_path / "pwned").exists()


def test_a_folder_without_a_run_is_not_found(tmp_path):
    with pytest.raises(RunNotFound, match=r"run\.yaml"):
        read_config(tmp_path)


def test_an_int_may_stand_for_a_float_and_stays_one():
    config = replace(FULL, weight_decay=0)
    assert config_from_yaml(config_to_yaml(config)).canonical_json() == config.canonical_json()
