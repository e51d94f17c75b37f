"""For all tests: one thread a process. Two workers of pytest-xdist then share two cores without getting in each other's
way, and sums are formed in the same order everywhere."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


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
