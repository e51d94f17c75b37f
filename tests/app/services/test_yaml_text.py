"""YAML is read as people mean it."""

from __future__ import annotations

import pytest

from app.services.yaml_text import dump_yaml, load_yaml
from planner.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5), ("1E-2", 1e-2), (".03", 0.03), ("2.", 2.0), ("-1.5e+3", -1500.0), ("16_384", 16384), ("0", 0),
        ("-1", -1),
        ("true", True), ("on", True), ("'True'", "True"), ("'1e-5'", "1e-5"), ("1e5x", "1e5x"), ("v1.2", "v1.2"),
    ],
)  # fmt: skip
def test_a_scalar_is_what_a_person_means(text: str, value: object) -> None:
    loaded = load_yaml(text, where="test")
    assert loaded == value
    assert type(loaded) is type(value)


def test_a_leading_zero_stays_text_so_that_it_cannot_become_octal() -> None:
    assert load_yaml("seed: 010", where="test") == {"seed": "010"}


def test_broken_yaml_names_file_and_line() -> None:
    with pytest.raises(ConfigError, match=r"p\.yaml, line [23]"):
        load_yaml("a: 1\nb: [1\n", where="p.yaml")


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    with pytest.raises(ConfigError, match=r"line 3.*'rank'.*line 2"):
        load_yaml("lora:\n  rank: 8\n  rank: 16\n", where="p.yaml")


def test_what_is_written_reads_back_the_same() -> None:
    value = {"learning_rate": 1e-05, "name": "on", "texts": ["1e-5", "010"], "none": None, "cjk": "长文"}
    assert load_yaml(dump_yaml(value), where="test") == value
