"""The page in a real browser: what-if, launch, watch, reload, stop, resume and kill, without one request elsewhere.

Pictures go to LONGFIT_SCREENSHOTS when it is set; with it the pictures of docs/ are taken from a live demo run:
    LONGFIT_SCREENSHOTS=docs/images pytest tests/app/gui/test_browser.py
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.app.gui.browser import Visit, chromium, served, visit

pytestmark = pytest.mark.slow
PLAN_PRESET = "qwen2.5-7b-16k-2x24g"
TINY = {
    "name": "tiny", "hardware": {"gpu": "cpu", "count": 1}, "model": "model",
    "data": {"train": ["rows of mine/été.jsonl"], "eval_fraction": 0.2}, "dtype": "float32", "max_length": 64,
    "max_steps": 100_000, "eval_steps": 20, "learning_rate": 0.01, "lora": {"rank": 4}, "packing": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("LONGFIT_SCREENSHOTS") or tmp_path_factory.mktemp("pictures")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A page started in a project folder: a preset of its own, data in a folder with spaces, a tiny model."""
    from tests.core.train.tiny_llama import save_tiny_llama

    folder = tmp_path_factory.mktemp("project")
    save_tiny_llama(folder / "model")
    rows = [
        {"messages": [{"role": "user", "content": f"name {i}"}, {"role": "assistant", "content": f"long {i}"}]}
        for i in range(200)
    ]
    (folder / "rows of mine").mkdir()
    (folder / "rows of mine" / "été.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / ".longfit" / "presets").mkdir(parents=True)
    (folder / ".longfit" / "presets" / "tiny.yaml").write_text(yaml.safe_dump(TINY, allow_unicode=True), "utf-8")
    own = {"LONGFIT_CACHE": str(folder / "cache"), "XDG_CONFIG_HOME": str(folder / "config"), "OMP_NUM_THREADS": "1"}
    with served(folder, environment=own) as url:
        yield url


def assert_clean(seen: Visit, url: str) -> None:
    """Nothing was asked of another host, and the browser had nothing to complain about."""
    assert seen.hosts <= {urlsplit(url).netloc, ""}
    assert seen.complaints == []


def test_what_if_moves_bar_verdict_command_and_address(browser: Any, address: str, pictures: Path) -> None:
    with visit(browser, f"{address}?preset=llama3.1-8b-32k-2x24g") as seen:
        page = seen.page
        seen.wait_for("#recommendation-1", "speed")
        page.screenshot(path=pictures / "web-plan.png", full_page=True)
        bar = page.inner_html("#bar")
        assert page.locator("#bar svg title").first.text_content()
        assert page.locator("#verdict [role=status]").count() == 1

        page.click("#double")
        seen.wait_for("#verdict", "OVER")
        assert page.inner_html("#bar") != bar
        assert "GiB over" in page.inner_html("#bar")
        assert page.is_disabled("#launch")
        assert "does not fit" in seen.text("#refusal")
        seen.wait_for("#command", "--set max_length=65536")
        page.screenshot(path=pictures / "web-plan-over.png", full_page=True)

        page.fill("#field-max-length input", "4096")
        page.press("#field-max-length input", "Tab")
        seen.wait_for("#command", "--set max_length=4096")
        page.wait_for_function("location.search.includes('max_length%3D4096')")
        seen.reload()
        seen.wait_for("#command", "--set max_length=4096")
        assert page.input_value("#field-max-length input") == "4096"
        assert_clean(seen, address)


def test_apply_takes_a_recommendation_over(browser: Any, address: str) -> None:
    with visit(browser, f"{address}?preset={PLAN_PRESET}") as seen:
        seen.wait_for("#recommendation-2", "speed")
        page = seen.page
        rank = next(rank for rank in (1, 2) if page.is_enabled(f"#apply-{rank}"))
        used = seen.text(f"#recommendation-{rank}").partition(" GiB")[0].rpartition(" ")[2]
        page.click(f"#apply-{rank}")
        seen.wait_for("#command", "--set")
        seen.wait_for("#verdict", f"{used} GiB")
        seen.wait_for(f"#recommendation-{rank}", "no change")
        assert page.is_disabled(f"#apply-{rank}")
        assert_clean(seen, address)


def test_a_pasted_command_loads_the_form(browser: Any, address: str) -> None:
    text = (Path(__file__).parents[2] / "data" / "swift_commands" / "one_gpu_everything.txt").read_text("utf-8")
    with visit(browser, address) as seen:
        page = seen.page
        page.click("#paste button")
        page.fill("#paste-text textarea", text)
        seen.wait_for("#paste-findings", "--galore_rank 64")
        assert "Not as written" in seen.text("#paste-findings")
        page.fill("#paste-name textarea, #paste-name input", "pasted-here")
        page.click("#paste-save")
        seen.wait_for("#command", "pasted-here")
        assert page.input_value("#field-max-length input") == "8192"
        seen.reload()
        seen.wait_for("#command", "pasted-here")
        assert_clean(seen, address)


def test_every_input_of_the_form_is_reached_by_keyboard_and_has_a_name(browser: Any, address: str) -> None:
    with visit(browser, address) as seen:
        names = seen.page.evaluate(
            "[...document.querySelectorAll('#tabs input, #tabs textarea, #tabs button')]"
            ".filter(e => e.offsetParent).map(e => [e.getAttribute('aria-label') || e.labels?.[0]?.innerText"
            " || e.innerText || e.title, e.tabIndex])"
        )
        assert len(names) > 15
        assert len([name for name, _ in names if not name]) == 0
        reached = {name for name, tab_index in names if tab_index >= 0}
        assert {name for name, _ in names} == reached  # Gradio keeps hidden twins of the tabs' buttons


def test_the_narrow_page_needs_no_sideways_scrolling(browser: Any, address: str) -> None:
    with visit(browser, f"{address}?preset={PLAN_PRESET}", width=420, height=900) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")


def test_the_words_of_the_bar_can_be_read_on_a_phone(browser: Any, address: str) -> None:
    with visit(browser, f"{address}?preset={PLAN_PRESET}", width=390, height=844) as seen:
        height = seen.page.locator("#bar svg.fit-bar text.total").first.evaluate(
            "e => e.getBoundingClientRect().height"
        )
        assert height >= 8  # pixels; 4.6 where the whole drawing is squeezed into the page


def test_a_run_from_launch_to_kill_survives_reload_and_other_pages(browser: Any, address: str) -> None:
    with visit(browser, f"{address}?preset=tiny") as seen:
        page = seen.page
        seen.wait_for("#verdict", "FITS")
        seen.wait_for("#command", "longfit train tiny")
        page.click("#launch")
        seen.wait_for("#run-status", "RUNNING", seconds=120)
        page.wait_for_function("location.search.startsWith('?run=')")
        run = page.url.partition("?run=")[2]
        page.wait_for_selector("#run-loss svg .bold", state="attached", timeout=60_000)
        page.wait_for_selector("#run-memory svg .level", state="attached", timeout=60_000)
        seen.wait_for("#run-rates", "tokens/s")

        seen.reload()
        seen.wait_for("#run-status", "RUNNING")
        assert page.url.endswith(run)
        with visit(browser, f"{address}?run={run}") as other:
            other.wait_for("#run-status", "RUNNING")
            other.wait_for("#run-progress", "of 100,000")

        page.click("#stop")
        seen.wait_for("#run-message", "Asked to save and stop")
        seen.wait_for("#run-status", "STOPPED")
        page.wait_for_function("document.querySelector('#run input').value.includes('STOPPED')")
        assert page.is_disabled("#stop")
        seen.wait_for("#resume-words", "Resume continues from")

        page.click("#resume")
        seen.wait_for("#run-status", "RUNNING", seconds=120)
        seen.wait_for("#run-status", "attempt 2")
        page.click("#kill")
        seen.wait_for("#kill", "click again")
        page.click("#kill")
        seen.wait_for("#run-status", "STOPPED")
        seen.wait_for("#run-events", "stop requested (kill)")
        assert_clean(seen, address)


@pytest.mark.timeout(1200)
@pytest.mark.skipif("LONGFIT_SCREENSHOTS" not in os.environ, reason="set LONGFIT_SCREENSHOTS to take docs/ pictures")
def test_pictures_of_a_live_demo_run(browser: Any, pictures: Path) -> None:
    """The demo's real model on real documents, launched from the page, photographed while it runs and when done."""
    from app.services.demo_documents import write_demo_documents
    from app.services.demo_model import demo_model_dir
    from app.services.locations import cache_dir

    demo_model_dir()
    write_demo_documents(cache_dir() / "demo")
    with (
        tempfile.TemporaryDirectory(prefix="my-project-") as folder,
        served(Path(folder), environment={}) as address,
        visit(browser, f"{address}?preset=demo-smollm2") as seen,
    ):
        seen.wait_for("#verdict", "FITS")
        seen.wait_for("#recommendation-1", "speed")
        seen.page.click("#launch")
        seen.wait_for("#run-progress", "step 6 of", seconds=600)
        seen.page.screenshot(path=pictures / "web-run.png", full_page=True)
        seen.wait_for("#run-status", "DONE", seconds=500)
        seen.page.wait_for_timeout(2500)
        seen.page.screenshot(path=pictures / "web-run-done.png", full_page=True)
        assert_clean(seen, address)
