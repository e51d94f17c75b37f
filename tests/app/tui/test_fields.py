"""app/tui/fields.py: what is typed into a field means what the same text means in a preset file."""

import pytest

from app.services.draft import Draft
from app.services.preset_keys import DATA_KEYS, RUN_KEYS
from app.tui.fields import field_choices, field_help, field_is_active, field_of_error, field_text, form_fields
from core.optimizations import REGISTRY
from planner.errors import ConfigError
from planner.types import Preset

SPECS = {spec.key: spec for spec in form_fields()}


def draft(**values):
    return Draft.of(Preset(name="p", description="", values=values, hardware={"gpu": "A10", "count": 2}))


def test_every_preset_key_and_every_knob_has_one_field():
    keys = [spec.key for spec in form_fields()]
    assert len(keys) == len(set(keys))
    assert {key.name for key in RUN_KEYS if key.name != "data"} <= set(keys)
    assert {f"data.{key.name}" for key in DATA_KEYS} <= set(keys)
    for name, cls in REGISTRY.items():
        assert any(key == name or key.startswith(f"{name}.") for key in keys) == cls.available, name


def test_labels_fit_their_column():
    assert [spec.label for spec in form_fields() if not spec.group and len(spec.label) > 14] == []


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("learning_rate", "1e-5", 1e-5),
        ("weight_decay", "1E-2", 1e-2),
        ("warmup_ratio", ".03", 0.03),
        ("max_length", "16_384", 16384),
        ("packing", "true", True),
        ("autocast", "auto", None),
        ("autocast", "false", False),
        ("data.train", "a.jsonl", ("a.jsonl",)),
        ("data.train", "[a.jsonl, b.jsonl#500]", ("a.jsonl", "b.jsonl#500")),
        ("model", "项目 一/été", "项目 一/été"),
        ("model", "no", "no"),
        ("rope_scaling", "{type: yarn, factor: 4.0}", {"type": "yarn", "factor": 4.0}),
    ],
)
def test_typed_values(key, text, value):
    assert SPECS[key].parse(text) == value


@pytest.mark.parametrize(
    ("key", "text", "fact"),
    [
        ("seed", "010", "Write 10."),
        ("max_length", "eight", "whole number"),
        ("max_length", "", "max_length"),
        ("learning_rate", "-1", "The least it can be is 0"),
        ("lr_scheduler_type", "cosin", "Did you mean 'cosine'?"),
        ("rope_scaling", "yarn", "mapping"),
    ],
)
def test_what_cannot_be_is_refused_with_the_key_and_the_remedy(key, text, fact):
    with pytest.raises(ConfigError) as caught:
        SPECS[key].parse(text)
    assert fact in str(caught.value)
    assert key.rpartition(".")[2] in caught.value.what


def test_degrees_show_their_number_however_they_are_written():
    for value in (2, {"degree": 2}):
        assert field_text(SPECS["ring"], draft(ring=value)) == "2"
    assert field_text(SPECS["ring"], draft()) == "1"
    assert field_text(SPECS["fake_parallel"], draft(fake_parallel={"groups": 4})) == "4"
    assert field_text(SPECS["count"], draft()) == "2"


def test_knobs_are_active_with_their_optimization():
    assert field_is_active(SPECS["lora.rank"], draft(lora=True))
    assert not field_is_active(SPECS["lora.rank"], draft(lora=False))
    assert not field_is_active(SPECS["qlora.rank"], draft(lora=True))
    assert field_is_active(SPECS["data.train"], draft())


def test_choices_come_from_presets_catalog_and_registry():
    lists = {"presets": ("a",), "models": ("m",), "gpus": ("A10",)}
    assert field_choices(SPECS["gpu"], **lists) == ("as preset", "here", "cpu", "A10")
    assert field_choices(SPECS["lr_scheduler_type"], **lists) == ("linear", "cosine", "constant", "wsd")
    assert field_choices(SPECS["lora.adapter_dtype"], **lists) == ("float32", "bfloat16", "float16")


def test_an_error_is_shown_beside_the_field_it_speaks_of():
    specs = form_fields()
    assert field_of_error(ConfigError("preset p: max_length is 7."), specs) == "max_length"
    assert field_of_error(ConfigError("preset p: lora: rank is 0."), specs) == "lora.rank"
    assert field_of_error(ConfigError("Something else."), specs) is None


def test_help_says_key_meaning_limits_default_and_what_is_set_now():
    text = field_help(SPECS["warmup_ratio"], "0.1", ())
    for fact in ("warmup_ratio", "share of the steps", "a number, at least 0, at most 1", "Left out: ", "now: 0.1"):
        assert fact in text, fact
    assert "It must be there." in field_help(SPECS["model"], "", ("a", "b"))
    assert "It can be linear, cosine" in field_help(SPECS["lr_scheduler_type"], "", ("linear", "cosine"))


def test_every_field_has_help():
    assert [spec.key for spec in form_fields() if not spec.help.strip()] == []
