"""For all tests: one thread a process. Two workers of pytest-xdist then share two cores without getting in each other's
way, and sums are formed in the same order everywhere.

Hypothesis draws the same examples in every run, so that what lands does not depend on luck; ``make soak`` draws others,
and more of them (``--hypothesis-profile=search``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("same")


@pytest.fixture(autouse=True, scope="module")
def _no_function_of_transformers_stays_replaced() -> Iterator[None]:
    """RoPE that `liger` replaced is that of the whole process: what a test forgets to take back breaks another file."""
    yield
    for name, module in list(sys.modules.items()):
        is_modeling = name.startswith("transformers.models.") and ".modeling_" in name
        rope = vars(module).get("apply_rotary_pos_emb") if is_modeling else None
        if rope is not None and not rope.__module__.startswith("transformers."):
            pytest.fail(f"{name}.apply_rotary_pos_emb is still {rope.__module__}.{rope.__qualname__}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-snapshots", action="store_true", help="write the pictures of screens anew (tests/snapshots)"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Registry entries that are planned and not trained with yet: nobody is to forget them."""
    from core.optimizations import REGISTRY

    left = [name for name, entry in REGISTRY.items() if not entry.available]
    if left:
        terminalreporter.write_line(f"planned only: {len(left)} of {len(REGISTRY)} entries ({', '.join(left)})")
