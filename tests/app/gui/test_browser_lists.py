"""The tabs that are lists in a real browser: reached by keyboard, kept by the address, no sideways scrolling.

Pictures at both sizes go to LONGFIT_SCREENSHOTS when it is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.gui.browser import Visit, chromium, served, visit
from tests.app.gui.run_folder import end_run, make_run

pytestmark = pytest.mark.slow
SIZES = ((1280, 800), (390, 844))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def address(project: Path) -> Iterator[str]:
    own = {"LONGFIT_CACHE": str(project / "cache"), "XDG_CONFIG_HOME": str(project / "config"), "OMP_NUM_THREADS": "1"}
    with served(project, environment=own) as url:
        yield url


def assert_fits(seen: Visit, name: str) -> None:
    """No sideways scrolling, no complaint; a picture where one is wanted."""
    page = seen.page
    if folder := os.environ.get("LONGFIT_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"web-{name}-{page.viewport_size['width']}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert seen.complaints == []


def press(seen: Visit, selector: str) -> None:
    """As a keyboard does it."""
    seen.page.focus(selector)
    seen.page.keyboard.press("Enter")


def test_runs_are_compared_kept_over_a_reload_and_opened(browser: Any, address: str, project: Path) -> None:
    runs = project / "runs"
    with visit(browser, f"{address}?tab=runs") as seen:
        seen.wait_for("#runs-table", "longfit train PRESET")
        first, second = make_run(runs, num_steps=40), make_run(runs, num_steps=25)
        end_run(first, "done")
        seen.wait_for("#runs-table", second.id)  # the list follows by itself
        seen.wait_for("#runs-table", "LOST")
    for width, height in SIZES:
        with visit(browser, f"{address}?tab=runs", width=width, height=height) as seen:
            seen.wait_for("#runs-table", second.id)
            press(seen, f'[data-act=compare][data-of="{first.id}"]')
            seen.wait_for("#runs-comparison", "press Compare of another run")
            press(seen, f'[data-act=compare][data-of="{second.id}"]')
            seen.wait_for("#runs-comparison", "40 of 100")
            seen.page.wait_for_function("location.search.split('compare=').length === 3")
            seen.reload()
            seen.wait_for("#runs-comparison", "40 of 100")
            assert_fits(seen, "runs")
            press(seen, f'[data-act=open][data-of="{first.id}"]')
            seen.wait_for("#run-status", "DONE")
            seen.page.wait_for_function("id => location.search === '?run=' + id", arg=first.id)
            assert seen.complaints == []
