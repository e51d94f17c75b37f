"""app/services/draft.py: edits of a preset as values, and the shortest overrides that say them."""

from hypothesis import given
from hypothesis import strategies as st

from app.services.draft import Draft, overrides_between
from app.services.presets import merge_overrides
from planner.types import Preset

PRESET = Preset(
    name="p",
    description="",
    values={"max_length": 8192, "lora": {"rank": 64}, "packing": True, "sequence_parallel": 2},
    hardware={"gpu": "A10", "count": 2},
)
knobs = st.dictionaries(st.sampled_from(["rank", "alpha"]), st.integers(1, 9), min_size=1)
values = st.dictionaries(
    st.sampled_from(["lora", "packing", "max_length"]), st.one_of(st.booleans(), st.integers(2, 9), knobs)
)


def test_an_untouched_draft_has_no_overrides_and_the_hardware_of_its_preset():
    draft = Draft.of(PRESET)
    assert draft.overrides == {}
    assert draft.hardware == ""
    assert draft.method == "lora"


def test_edits_become_dotted_overrides_and_vanish_when_taken_back():
    draft = Draft.of(PRESET).set("max_length", 16384).set("lora.rank", 8)
    assert draft.overrides == {"max_length": 16384, "lora.rank": 8}
    assert draft.set("max_length", 8192).set("lora.rank", 64).overrides == {}


def test_method_carries_rank_over_and_full_drops_the_adapter():
    draft = Draft.of(PRESET).set("method", "qlora")
    assert draft.method == "qlora"
    assert draft.overrides == {"lora": None, "qlora": {"rank": 64}}
    assert draft.set("method", "full").overrides == {"lora": None}
    assert draft.set("method", "lora").overrides == {}


def test_a_degree_of_one_switches_parallelism_off():
    assert Draft.of(PRESET).set("sequence_parallel", 1).overrides == {"sequence_parallel": None}
    assert Draft.of(PRESET).set("fake_parallel", 2).overrides == {"fake_parallel": 2}


def test_hardware_is_what_the_gpu_flag_would_say():
    draft = Draft.of(PRESET)
    assert Draft(preset=PRESET, values=draft.values, count=4).hardware == "4xA10"
    assert Draft(preset=PRESET, values=draft.values, gpu="cpu", count=2).hardware == "2xcpu"
    assert Draft(preset=PRESET, values=draft.values, gpu="H200", count=1).hardware == "H200"
    assert Draft(preset=PRESET, values=draft.values, gpu="here", count=3).hardware == "here"


def test_applying_an_alternative_is_an_edit_like_any_other():
    draft = Draft.of(PRESET).apply((("fused_loss", True), ("packing", None)))
    assert draft.overrides == {"packing": None, "fused_loss": True}


def test_a_scalar_main_knob_is_not_lost_when_another_knob_is_set():
    draft = Draft.of(Preset(name="p", description="", values={"lora": 64}))
    assert draft.get("lora.rank") == 64
    assert draft.set("lora.alpha", 8).overrides == {"lora": {"rank": 64, "alpha": 8}}
    assert draft.set("method", "qlora").values == {"qlora": {"rank": 64}}


@given(before=values, after=values)
def test_overrides_lead_exactly_from_one_set_of_values_to_the_other(before, after):
    assert merge_overrides(before, overrides_between(before, after)) == after
