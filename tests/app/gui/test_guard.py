"""The door of the page, without Gradio behind it: which requests pass, and what the others are told."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.gui.guard import Guard

TOKEN = "t0ken-" + "x" * 38
OWN = "127.0.0.1:7860"


class Behind:
    """An application that answers every request and remembers what reached it."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"behind"})


async def ask(path: str = "/", *, token: str | None = None, method: str = "GET", **headers: str) -> httpx.Response:
    guard = Guard(app=Behind(), hosts=frozenset({"127.0.0.1", "localhost", "::1"}), token=token, cookie="longfit-7860")
    transport = httpx.ASGITransport(app=guard)
    async with httpx.AsyncClient(transport=transport, base_url="http://" + OWN) as client:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return await client.request(method, path, headers=named)


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]:7860"])
async def test_names_of_this_server_pass(host: str) -> None:
    assert (await ask(Host=host)).status_code == 200


FOREIGN = (
    *(
        "evil.example",
        "evil.example:7860",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
    ),
    *("localhost.", "", "127.0.0.1:7860,evil.example", "127.0.0.1/evil", "[::1", "0.0.0.0:7860", "127.0.0.1:x"),
)


@pytest.mark.parametrize("host", FOREIGN)
async def test_foreign_and_malformed_hosts_are_refused(host: str) -> None:
    answer = await ask(Host=host)
    assert answer.status_code == 403
    assert "--allow-host" in answer.text


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:8888", "http://127.0.0.1:7860.evil.example"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_other_sites_are_refused_by_origin(origin: str, method: str) -> None:
    path = "/config" if method == "GET" else "/gradio_api/queue/join"
    assert (await ask(path, method=method, Origin=origin)).status_code == 403


async def test_own_origin_passes() -> None:
    assert (await ask("/gradio_api/queue/join", method="POST", Origin="http://" + OWN)).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_other_sites_may_link_to_the_page_and_nothing_else(site: str) -> None:
    link = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate"}
    assert (await ask("/", **link)).status_code == 200
    assert (await ask("/config", **link)).status_code == 403
    assert (await ask("/", Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")).status_code == 403


CLOSED = (
    *("/file=/etc/passwd", "/gradio_api/file=/etc/passwd", "/gradio_api/file=../../../../etc/passwd"),
    *(
        "/gradio_api/file=http://127.0.0.1:1/x",
        "/gradio_api/file=..%2f..%2fetc%2fpasswd",
        "/gradio_api/file=~/.ssh/id_rsa",
    ),
    *("/gradio_api/file=C:\\Windows\\win.ini", "/gradio_api/file=out%00.txt", "/gradio_api/proxy=http://127.0.0.1:1/x"),
    *("/gradio_api/upload", "/gradio_api/upload_progress", "/gradio_api/runs", "/gradio_api/deep_link"),
    *("/gradio_api/dev/reload", "/gradio_api/openapi.json", "/gradio_api/token", "/gradio_api/vibe-code"),
    *("/gradio_api/custom_component/1/client/component/x.js", "/monitoring", "/monitoring/summary", "/login", "/docs"),
    *("/static/%2e%2e/%2e%2e/etc/passwd", "/static//etc/passwd", "/static/a/..%2f..%2fx"),
    *("/assets/..%2f..%2froutes.py", "/assets/..%5c..%5croutes.py", "/svelte/../../routes.py%00.js"),
)


@pytest.mark.parametrize("path", CLOSED)
async def test_routes_the_page_does_not_need_do_not_exist(path: str) -> None:
    for method in ("GET", "POST"):
        answer = await ask(path, method=method)
        assert answer.status_code == 404
        assert "behind" not in answer.text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_unused_methods_do_not_exist(method: str) -> None:
    assert (await ask("/", method=method)).status_code == 404


async def test_without_its_token_nothing_answers() -> None:
    for path in ("/", "/config", "/gradio_api/info", "/?token=", "/?token=wrong", "/config?token=" + TOKEN):
        answer = await ask(path, token=TOKEN)
        assert answer.status_code == 401, path
        assert TOKEN not in answer.text


async def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address() -> None:
    answer = await ask(f"/?run=a%20b&token={TOKEN}", token=TOKEN)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?run=a+b"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"longfit-7860={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


async def test_cookie_and_bearer_token_open_the_page_beside_odd_cookies_of_other_servers() -> None:
    assert (await ask(token=TOKEN, Cookie=f'odd={{"a": 1}}; [x]; longfit-7860={TOKEN}')).status_code == 200
    assert (await ask(token=TOKEN, Authorization=f"Bearer {TOKEN}")).status_code == 200
    assert (await ask(token=TOKEN, Cookie=f"longfit-7861={TOKEN}")).status_code == 401
    assert (await ask(token=TOKEN, Authorization=f"Basic {TOKEN}")).status_code == 401


async def test_a_foreign_host_is_refused_even_with_the_token() -> None:
    assert (await ask(token=TOKEN, Host="evil.example", Authorization=f"Bearer {TOKEN}")).status_code == 403


async def test_every_answer_forbids_other_hosts_and_frames() -> None:
    for answer in (await ask(), await ask("/nowhere"), await ask(token=TOKEN), await ask(Host="evil.example")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_forwarded_host_never_reaches_gradio() -> None:
    behind = Behind()
    guard = Guard(app=behind, hosts=frozenset({"127.0.0.1"}), token=None, cookie="c")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guard), base_url="http://" + OWN) as client:
        await client.get("/", headers={"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"})
    names = [name for name, _ in behind.scopes[0]["headers"]]
    assert b"x-forwarded-host" not in names
    assert b"x-forwarded-proto" in names


async def test_websockets_are_closed() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    behind = Behind()
    guard = Guard(app=behind, hosts=frozenset({"127.0.0.1"}), token=None, cookie="c")
    await guard({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert not behind.scopes
