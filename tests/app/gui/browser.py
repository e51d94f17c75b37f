"""A real browser for tests of the page: chromium of the system, driven by playwright. Skips with the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[3]
_CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@dataclass
class Visit:
    """A page in the browser, and what happened while it was open."""

    page: Any
    hosts: set[str] = field(default_factory=set)  # asked for anything over the network
    complaints: list[str] = field(default_factory=list)  # errors of the console, answers of 400 and above

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def reload(self) -> None:
        """Reload; that the streams of the page left behind are cut off is no complaint."""
        before = len(self.complaints)
        self.page.reload()
        self.page.wait_for_selector("#verdict .word", state="attached", timeout=60_000)
        del self.complaints[before:]

    def wait_for(self, selector: str, words: str, *, seconds: float = 60) -> None:
        """Until the element says these words."""
        self.page.wait_for_function(
            "([selector, words]) => document.querySelector(selector)?.innerText.includes(words)",
            arg=[selector, words],
            timeout=1000 * seconds,
        )


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser. Skips the test where playwright or chromium is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    path = next(filter(None, map(shutil.which, _CHROMIUM_NAMES)), None)
    if path is None:
        pytest.skip(f"no chromium on this machine (looked for {', '.join(_CHROMIUM_NAMES)})")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        browser.close()


@contextmanager
def visit(browser: Any, url: str, *, width: int = 1400, height: int = 1000) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    seen = Visit(page=page)
    page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
    page.on("console", lambda message: seen.complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("response", lambda r: seen.complaints.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    page.goto(url)
    page.wait_for_selector("#verdict .word", state="attached", timeout=60_000)
    yield seen
    context.close()


@contextmanager
def served(folder: Path, *arguments: str, environment: Mapping[str, str]) -> Iterator[str]:
    """`longfit web` started in ``folder``; its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "app.cli.main", "web", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), url
        try:
            yield url
        finally:
            process.terminate()
