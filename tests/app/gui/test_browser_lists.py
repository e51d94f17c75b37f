"""The tabs that are lists in a real browser: reached by keyboard, kept by the address, no sideways scrolling.

Pictures at both sizes go to LONGFIT_SCREENSHOTS when it is set.
"""

from __future__ import annotations

import json
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


def test_a_preset_is_shown_as_swift_saved_and_opened_in_plan(browser: Any, address: str) -> None:
    for width, height in SIZES:
        with visit(browser, f"{address}?tab=presets", width=width, height=height) as seen:
            page, name = seen.page, f"mine-{width}"
            seen.wait_for("#presets-table", "FITS")
            press(seen, '[data-act=show][data-of="qwen2.5-7b-16k-2x24g"]')
            page.wait_for_function("location.search.includes('show=qwen2.5-7b-16k-2x24g')")
            page.click("#presets-target label:has-text('swift')")
            seen.wait_for("#presets-text", "swift sft")
            page.wait_for_function("location.search.includes('as=swift')")
            seen.reload()
            seen.wait_for("#presets-text", "--max_length 16384")
            seen.wait_for("#presets-table", "FITS")
            assert_fits(seen, "presets")
            page.fill("#presets-name textarea, #presets-name input", name)
            press(seen, "#presets-copy")
            seen.wait_for("#presets-message", "Saved as")
            seen.wait_for("#presets-table", name)
            page.wait_for_function("name => location.search.includes('show=' + name)", arg=name)
            press(seen, "#presets-open")
            seen.wait_for("#command", f"longfit plan {name}")
            page.wait_for_function("name => location.search === '?preset=' + name", arg=name)
            assert seen.complaints == []


def test_data_is_read_in_the_background_and_kept_over_a_reload(browser: Any, address: str, project: Path) -> None:
    from tests.core.train.tiny_llama import save_tiny_llama

    save_tiny_llama(project / "model")
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"name {i}"},
                {"role": "assistant", "content": "long " * (1 + i % 9)},
            ]
        }
        for i in range(50)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (project / "good.jsonl").write_text(text, "utf-8")
    (project / "bad.jsonl").write_text(text + '{"broken\n', "utf-8")
    edits = "preset=demo-smollm2&set=data.train%3D%5Bgood.jsonl%5D&set=model%3Dmodel&set=max_length%3D64"
    with visit(browser, f"{address}?tab=data&{edits}") as seen:
        page = seen.page
        seen.wait_for("#data-status", "Read reads good.jsonl for rows of 64 tokens of model")
        press(seen, "#data-read")
        seen.wait_for("#data-report", "kept whole")
        seen.reload()
        seen.wait_for("#data-report", "kept whole")
        page.fill("#data-sources textarea", "bad.jsonl")
        page.press("#data-sources textarea", "Tab")
        seen.wait_for("#data-status", "Read reads bad.jsonl")
        page.wait_for_function("location.search.includes('tab=data') && location.search.includes('bad.jsonl')")
        press(seen, "#data-read")
        seen.wait_for("#data-report", "bad.jsonl:51: not valid JSON")
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            assert_fits(seen, "data")
        page.get_by_role("tab", name="Plan").first.click()
        seen.wait_for("#command", "bad.jsonl")
