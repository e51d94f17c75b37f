"""Facts that the importer's tests share: the real registry and planner, no GPU, no hub, no files."""

from __future__ import annotations

import pytest

from app.services.importing.facts import Facts, facts_here
from planner.catalog.models import MODELS, nearest_models
from planner.model_spec import model_spec_from_config
from planner.types import Environment, ModelSpec


def catalog_spec(name: str) -> ModelSpec | None:
    return model_spec_from_config(name, MODELS[name]) if name in MODELS else None


def make_facts(**changes: object) -> Facts:
    here = facts_here()
    values = {
        "registry": here.registry, "model": catalog_spec, "near_models": nearest_models, "is_file": lambda name: False,
        "reads_hubs": False, "objections": here.objections,
        "machine": lambda: Environment(source="detected", packages={}, compute_capability=None),
    }  # fmt: skip
    return Facts(**{**values, **changes})


@pytest.fixture(scope="session")
def facts() -> Facts:
    return make_facts()


@pytest.fixture(scope="session")
def unplanned() -> Facts:
    """The planner is not asked: for thousands of imports."""
    return make_facts(objections=lambda preset: ())
