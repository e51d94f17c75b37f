"""The Plan tab's form: presets and drafts go through it without loss, and paths typed into it stay in the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.gui.confine import confined_path
from app.gui.form import draft_of, form_fields, form_of
from app.services.draft import Draft
from app.services.presets import list_presets, merge_overrides
from core.optimizations import REGISTRY
from planner.errors import ConfigError
from planner.types import Preset

FIELDS = form_fields(REGISTRY)
INDEX = {field.key: index for index, field in enumerate(FIELDS)}


def preset(**values: Any) -> Preset:
    base = {"model": "Qwen/Qwen2.5-7B-Instruct", "max_length": 8192, "data": {"train": ["a.jsonl"]}}
    return Preset(name="p", description="", values=base | values)


def edited(source: Preset, **changes: Any) -> dict[str, Any]:
    """Overrides after typing ``changes`` into the form of a preset; ``__`` stands for a dot."""
    form = form_of(Draft.of(source), FIELDS, REGISTRY)
    for key, value in changes.items():
        form[INDEX[key.replace("__", ".")]] = value
    return draft_of(source, FIELDS, form, REGISTRY).overrides


@pytest.mark.parametrize("source", list_presets(), ids=lambda p: p.name)
def test_an_untouched_form_overrides_nothing(source: Preset) -> None:
    assert edited(source) == {}


def test_every_scalar_key_and_every_knob_has_a_field() -> None:
    from app.services.preset_keys import DATA_KEYS, RUN_KEYS, optimization_keys

    wanted = {key.name for key in RUN_KEYS} - {"data"} | {f"data.{key.name}" for key in DATA_KEYS}
    assert wanted <= set(INDEX)
    for name in REGISTRY:
        for key in optimization_keys(name, REGISTRY):
            assert {f"{name}.{key.name}", f"adapter.{key.name}", name} & set(INDEX), (name, key.name)


def test_edits_become_the_shortest_overrides() -> None:
    source = preset(lora={"rank": 64, "alpha": 128}, packing=True)
    assert edited(source, max_length=16384, adapter__rank=8) == {"max_length": 16384, "lora.rank": 8}
    assert edited(source, packing=False) == {"packing": None}
    assert edited(source, ring=2) == {"ring": 2}
    assert edited(source, data__train="b.jsonl\nc.jsonl#50") == {"data.train": ["b.jsonl", "c.jsonl#50"]}
    assert edited(source, autocast="false") == {"autocast": False}
    assert edited(source, rope_scaling="{type: yarn, factor: 4}") == {"rope_scaling": {"type": "yarn", "factor": 4}}


def test_knobs_of_something_that_is_off_say_nothing() -> None:
    source = preset(fused_loss={"chunk_tokens": 77})
    assert edited(source, fused_loss=False) == {"fused_loss": None}
    assert edited(preset(), fused_loss__chunk_tokens=5, adapter__rank=4) == {}
    assert edited(preset(lora=True), adapter__double_quant=False) == {}


def test_a_main_knob_written_as_a_scalar_survives_edits_beside_it() -> None:
    source = preset(lora=64)
    assert form_of(Draft.of(source), FIELDS, REGISTRY)[INDEX["adapter.rank"]] == 64
    merged = merge_overrides(source.values, edited(source, adapter__alpha=7))
    assert merged["lora"] == {"rank": 64, "alpha": 7}


def test_switching_the_method_carries_the_knobs_over() -> None:
    merged = merge_overrides(preset(lora={"rank": 64}).values, edited(preset(lora={"rank": 64}), method="qlora"))
    assert "lora" not in merged
    assert merged["qlora"] == {"rank": 64}


def test_emptied_fields_mean_the_default() -> None:
    assert edited(preset(learning_rate=1e-3), learning_rate=None) == {"learning_rate": None}


def test_half_a_token_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"length, tokens is 8192\.5\. It must be a whole number"):
        edited(preset(), max_length=8192.5)


@pytest.mark.parametrize(
    "wrong",
    [{"max_length": "lots"}, {"dtype": "bf16"}, {"learning_rate": True}, {"report_to": 5}, {"packing": "maybe"},
     {"rope_scaling": "x"}, {"autocast": "y"}, {"data": "a.jsonl"}, {"lora": "r64"}, {"keep_best": 3}, {"data": None}],
    ids=str,
)  # fmt: skip
def test_a_preset_with_wrong_values_is_shown_and_stays_as_it_is(wrong: dict[str, Any]) -> None:
    assert edited(preset(**wrong)) == {}


def test_what_cannot_be_trained_with_yet_says_so() -> None:
    class Later(REGISTRY["packing"]):  # type: ignore[misc,valid-type]
        available = False

    labels = {field.key: field.label for field in form_fields({**REGISTRY, "packing": Later})}
    assert labels["packing"] == "Packing (planned only)"


PATHS = json.loads((Path(__file__).parents[2] / "data" / "k12_paths.json").read_text("utf-8"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    (work / "data" / "link_to_etc").symlink_to("/etc")
    (tmp_path / "secret.jsonl").write_text("{}")
    monkeypatch.chdir(work)
    return work


@pytest.mark.parametrize("path", PATHS["must_refuse_or_confine"])
@pytest.mark.parametrize("field", ["model", "data__train", "data__eval"])
def test_hostile_paths_are_refused_or_confined(folder: Path, path: str, field: str) -> None:
    path = path.replace(" (symlink)", "")
    try:
        overrides = edited(preset(), **{field: path})
    except ConfigError:
        return
    (typed,) = overrides.values()
    real = (folder / (typed if isinstance(typed, str) else typed[0])).resolve()
    assert folder.resolve() in real.parents


def test_a_refusal_does_not_tell_whether_the_file_exists(folder: Path) -> None:
    messages = set()
    for name in ("secret.jsonl", "nothing.jsonl"):
        with pytest.raises(ConfigError) as refusal:
            edited(preset(), data__train=f"../{name}")
        messages.add(str(refusal.value).replace(name, "NAME"))
    assert len(messages) == 1


@pytest.mark.parametrize("path", [*PATHS["must_work"], *PATHS["must_be_plain_text_never_shell"], "a.jsonl#500"])
def test_odd_names_inside_the_folder_are_kept_as_typed(folder: Path, path: str) -> None:
    assert edited(preset(), data__train=path) == {"data.train": [path]}
    assert folder.resolve() in confined_path(path, what="data").parents
