"""The whole page behind its guard, over HTTP: security, wiring by gradio_client, nothing heavy imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.gui.plan_actions import load_form
from app.gui.plan_form import inputs_from_form
from app.gui.server import Address, allowed_hosts, bind, build_app
from app.services.planning import plan_preset
from planner.plan_json import plan_to_dict
from tests.app.gui.run_folder import attend, end_run, make_run

ROOT = Path(__file__).resolve().parents[3]
PRESET = "qwen2.5-7b-16k-2x24g"
TOKEN = "s" * 43


@dataclass(frozen=True)
class Served:
    url: str
    runs: Path
    routes: tuple[str, ...]


def serve_page(runs: Path, *, token: str | None) -> Iterator[Served]:
    """A page in a thread of this process, on a port of its own."""
    import uvicorn

    bound = bind("127.0.0.1", None)
    address = Address(host="127.0.0.1", port=bound.getsockname()[1], token=token)
    app = build_app(address, runs_root=runs, hosts=allowed_hosts("127.0.0.1", []))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    gradio_app = app.app.routes[-1].app  # guard -> FastAPI -> Gradio
    yield Served(url=f"http://127.0.0.1:{address.port}", runs=runs, routes=tuple(paths_of(gradio_app.routes)))
    server.should_exit = True
    thread.join(10)
    bound.close()


def paths_of(routes: Any) -> Iterator[str]:
    """Every path, those of included routers too."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from paths_of(inner.routes)
        elif getattr(route, "path", None):
            yield route.path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve_page(tmp_path_factory.mktemp("runs"), token=None)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve_page(tmp_path_factory.mktemp("locked"), token=TOKEN)


@pytest.fixture(scope="module")
def client(page: Served) -> Iterator[Any]:
    from gradio_client import Client

    with_client = Client(page.url, verbose=False)
    yield with_client
    with_client.close()


def test_the_page_answers_its_own_host_and_no_other(page: Served) -> None:
    assert httpx.get(page.url).status_code == 200
    assert httpx.get(page.url, headers={"Host": "evil.example"}).status_code == 403
    assert httpx.get(page.url + "/config", headers={"Origin": "http://evil.example"}).status_code == 403


def test_a_foreign_site_cannot_start_or_stop_a_run(page: Served) -> None:
    for path in ("/gradio_api/queue/join", "/gradio_api/run/stop", "/gradio_api/run/launch", "/gradio_api/run/kill"):
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            answer = httpx.post(page.url + path, json={"data": ["x"]}, headers=headers)
            assert answer.status_code == 403, (path, headers)


def test_every_route_of_the_application_asks_for_the_token(locked: Served) -> None:
    assert {"/gradio_api/queue/join", "/gradio_api/upload", "/config", "/monitoring"} <= set(locked.routes)
    for route in {*locked.routes, "/", "/config", "/gradio_api/startup-events", "/gradio_api/file=/etc/passwd"}:
        path = re.sub(r"\{[^}]*\}", "x", route) or "/"
        for method in ("GET", "POST", "HEAD"):
            assert httpx.request(method, locked.url + path).status_code == 401, (method, path)


def test_the_token_opens_the_page_and_the_cookie_keeps_it_open(locked: Served) -> None:
    with httpx.Client(base_url=locked.url, follow_redirects=True) as browser:
        first = browser.get(f"/?token={TOKEN}")
        assert first.status_code == 200
        assert TOKEN not in str(first.url)
        assert TOKEN not in first.text
        assert browser.get("/config").status_code == 200
    assert httpx.get(locked.url + "/config", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


PATHS = json.loads((ROOT / "tests" / "data" / "k12_paths.json").read_text("utf-8"))["must_refuse_or_confine"]


@pytest.mark.parametrize(
    "prefix", ["/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/assets/", "/svelte/"]
)
def test_no_file_of_the_machine_is_served(page: Served, prefix: str) -> None:
    for path in [*PATHS, __file__, str(ROOT / "pyproject.toml"), "%2e%2e/%2e%2e/%2e%2e/etc/passwd"]:
        try:
            answer = httpx.get(page.url + prefix + path.replace("\0", "%00"))
        except httpx.InvalidURL:
            continue
        assert answer.status_code in (403, 404), path
        assert "root:" not in answer.text


def test_nothing_of_gradio_calls_home_or_shows_more_than_the_page(page: Served) -> None:
    config = httpx.get(page.url + "/config").json()
    assert config["analytics_enabled"] is False
    assert config["footer_links"] == []
    assert config["run_history"] is False
    assert httpx.get(page.url + "/gradio_api/runs").status_code == 404
    assert httpx.get(page.url + "/monitoring").status_code == 404
    html = httpx.get(page.url).text
    sources = re.findall(r"""(?:src|href)=["'](?:https?:)?//([^/"']+)""", html)
    assert set(sources) <= {page.url.removeprefix("http://")}, sources


def test_the_plan_endpoint_gives_the_numbers_of_plan_json(client: Any) -> None:
    answer = client.predict(*inputs_from_form(load_form(PRESET)), api_name="/plan")
    table = next(text for text in map(_text, answer) if 'class="parts"' in text)
    gpu = plan_to_dict(plan_preset(PRESET).plan)["gpus"][0]
    assert sum(int(size) for size in re.findall(r'data-bytes="(\d+)"', table)) == gpu["peak"]["used_bytes"]


def test_an_edit_changes_verdict_command_and_launch(client: Any) -> None:
    form = load_form("demo-smollm2")
    texts = "".join(map(_text, client.predict(*inputs_from_form(form), api_name="/plan")))
    assert "longfit train demo-smollm2" in texts
    values = inputs_from_form(form)
    values[1:3] = ["A10", 2]
    texts = "".join(map(_text, client.predict(*values, api_name="/plan")))
    assert "longfit plan demo-smollm2 --gpu 2xA10" in texts
    assert "choose this machine" in texts


def test_a_pasted_command_is_read_saved_and_loaded(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    text = "swift sft --model Qwen/Qwen3-8B --dataset rows.jsonl --max_length 1024 --use_dora true"
    findings, name = client.predict(text, api_name="/import")
    assert "Not as written" in findings
    form = client.predict(text, name, api_name="/import_save")
    assert name in _text(form[0])
    assert 1024 in form
    assert (tmp_path / "longfit" / "presets" / f"{name}.yaml").is_file()


def test_launch_refuses_what_the_page_refuses(client: Any, page: Served) -> None:
    from gradio_client.exceptions import AppError

    with pytest.raises(AppError, match="choose this machine"):
        client.predict(*inputs_from_form(load_form(PRESET)), api_name="/launch")
    assert list(page.runs.iterdir()) == []


def test_the_run_endpoint_shows_a_run_and_stop_leaves_a_command(client: Any, page: Served) -> None:
    run = make_run(page.runs)
    attend(run)
    texts = "".join(map(_text, client.predict(run.id, False, api_name="/run")))
    assert ">RUNNING<" in texts
    assert "evaluation, last 1.4" in texts
    assert "Asked to save and stop" in client.predict(run.id, api_name="/stop")
    (command,) = run.control.glob("*.json")
    assert json.loads(command.read_text()) == {"command": "stop", "mode": "save"}
    end_run(run, "stopped")
    assert "NOT DONE" in client.predict(run.id, api_name="/stop")
    assert "is not running" in client.predict(run.id, api_name="/stop")
    assert "There is no run" in client.predict("../..", api_name="/stop")


def test_kill_needs_a_second_click(page: Served) -> None:
    from gradio_client import Client

    run = make_run(page.runs)
    attend(run)
    browser = Client(page.url, verbose=False)
    assert not browser.predict(run.id, api_name="/kill")
    assert not list(run.control.glob("*.json"))
    assert "Asked to end every process" in browser.predict(run.id, api_name="/kill")
    assert len(list(run.control.glob("*.json"))) == 1
    browser.close()
    end_run(run, "stopped")


def test_building_the_page_imports_no_torch() -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom app.gui.page import build_page\n"
        "build_page(runs_root=Path('nowhere'), needs_token=False)\n"
        "assert not {'torch', 'transformers', 'peft', 'textual'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_verb_serves_on_the_loopback_whatever_the_shell_says(tmp_path: Path) -> None:
    """The real command: the address is data on stdout, GRADIO_* variables do not win, Ctrl-C ends it with 0."""
    import psutil

    hostile = {"GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SHARE": "True", "GRADIO_ALLOWED_PATHS": "/",
               "GRADIO_ROOT_PATH": "http://evil.example", "GRADIO_ANALYTICS_ENABLED": "True"}  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "app.cli.main", "web", "--runs-dir", str(tmp_path)],
        cwd=ROOT, env={**os.environ, **hostile}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url), url
            listening = [c.laddr.ip for c in psutil.Process(process.pid).net_connections() if c.status == "LISTEN"]
            assert listening == ["127.0.0.1"]
            html = _get_when_ready(url)
            assert "evil.example" not in html
            assert httpx.get(url + "gradio_api/file=/etc/hostname").status_code == 404
        finally:
            process.send_signal(2)
            rest, talk = process.communicate(timeout=20)
    assert process.returncode == 0
    assert rest == ""
    assert "Runs go on" in talk
    assert "Traceback" not in talk


def _get_when_ready(url: str) -> str:
    deadline = time.monotonic() + 20
    while True:
        try:
            return httpx.get(url).text
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
