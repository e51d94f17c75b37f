"""The door of the web page: an ASGI layer in front of Gradio that decides which requests reach it. Used by server.py.

Gradio alone answers any Host and any Origin, and serves many routes that this page never calls (uploads, file and
proxy reads, monitoring, editing helpers: where its security advisories were). Here a request passes only if
    1. its Host is a name of this server     (else a foreign site could rebind its own name to 127.0.0.1),
    2. it does not come from another site    (Origin and Sec-Fetch-Site),
    3. it carries the token, where one is asked for, and
    4. its route is one that the page needs.
Answers carry a content security policy, so that a browser loads nothing from other hosts whatever the page says.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What the page and gradio_client call. Everything else is 404 before Gradio sees it.
_READ_ROUTES = re.compile(
    r"/|/config/?|/theme\.css|/favicon\.ico|/robots\.txt|/manifest\.json"
    r"|/(assets|static|svelte)/(?!/|.*//|.*\.\.)[^\0\\]+"
    r"|/gradio_api/(info|app_id|user|login_check|startup-events|theme\.css|queue/data)/?"
    r"|/gradio_api/heartbeat/[^/]+"
)
_CALL_ROUTES = re.compile(r"/gradio_api/(queue/join|reset|cancel)/?|/gradio_api/run/[A-Za-z0-9_]+/?")
_ROUTES = {"GET": _READ_ROUTES, "HEAD": _READ_ROUTES, "POST": _CALL_ROUTES}

# 'unsafe-inline' and 'unsafe-eval': Gradio's page has inline scripts, and Vega compiles its plots.
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; connect-src 'self'; "
        b"object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """ASGI application. ``hosts`` are lower-case names and addresses without port (IPv6 without brackets);
    ``token`` None asks for none; ``cookie`` is the name under which a browser keeps the token."""

    app: ASGIApp
    hosts: frozenset[str]
    token: str | None
    cookie: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket: the page uses none
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _Headers(scope)
        refusal = self._refuse_host(headers) or self._refuse_origin(scope, headers)
        if refusal:
            await _answer(send, 403, refusal)
            return
        if self.token is not None and not self._carries_token(headers):
            await self._ask_for_token(scope, send)
            return
        route = _ROUTES.get(scope["method"])
        if route is None or not route.fullmatch(scope["path"]):
            await _answer(send, 404, "No such page.")
            return
        await self.app(_without_forwarded_host(scope), receive, _with_headers(send))

    def _refuse_host(self, headers: _Headers) -> str:
        host = headers.one("host")
        name = _host_name(host)
        if name in self.hosts:
            return ""
        shown = host.encode("ascii", "replace").decode()[:200] if host else "none"
        return (
            f"This server does not go by the name of the Host header ({shown}). "
            "If you reach it through a proxy or another name, start it with: longfit web --allow-host NAME"
        )

    def _refuse_origin(self, scope: Scope, headers: _Headers) -> str:
        origin = headers.one("origin")
        if origin and urlsplit(origin).netloc.lower() != headers.one("host").lower():
            return "Requests that other sites make are refused."
        # A link from elsewhere may open the page; pictures, scripts and fetches of other sites may not touch it.
        opens_page = scope["path"] == "/" and headers.one("sec-fetch-mode") == "navigate"
        if headers.one("sec-fetch-site") in ("cross-site", "same-site") and not opens_page:
            return "Requests that other sites make are refused."
        return ""

    def _carries_token(self, headers: _Headers) -> bool:
        # Split by hand: http.cookies gives up at the first odd cookie, and other servers of this host set their own.
        cookies = (pair.strip().partition("=") for pair in headers.one("cookie").split(";"))
        offered = [value for name, _, value in cookies if name == self.cookie]
        scheme, _, credentials = headers.one("authorization").partition(" ")
        if scheme.lower() == "bearer":
            offered.append(credentials.strip())
        return any(self._is_token(value) for value in offered)

    def _is_token(self, value: str) -> bool:
        return self.token is not None and hmac.compare_digest(value.encode(), self.token.encode())

    async def _ask_for_token(self, scope: Scope, send: Send) -> None:
        """``GET /?token=...`` trades the token for a cookie and takes it out of the address; all else is 401."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] == "GET" and scope["path"] == "/" and self._is_token(dict(query).get("token", "")):
            rest = urlencode([(key, value) for key, value in query if key != "token"])
            cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            location = "/?" + rest if rest else "/"
            await _answer(send, 303, "", (b"location", location.encode()), (b"set-cookie", cookie.encode()))
            return
        await _answer(send, 401, "This page needs its token: open the address that `longfit web` printed.")


class _Headers:
    """Header look-up. Of a name sent twice it gives both, joined: no check below accepts that."""

    def __init__(self, scope: Scope) -> None:
        self._raw: list[tuple[bytes, bytes]] = list(scope["headers"])

    def one(self, name: str) -> str:
        return b",".join(value for key, value in self._raw if key == name.encode()).decode("latin-1").strip()


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, lower case; "" when it is malformed."""
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?", host):
        return ""
    return (urlsplit("//" + host).hostname or "").lower()


def _without_forwarded_host(scope: Scope) -> Scope:
    """Gradio would build the page's own addresses from X-Forwarded-Host, which nobody has checked."""
    return {**scope, "headers": [(key, value) for key, value in scope["headers"] if key != b"x-forwarded-host"]}


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return send_with_headers


async def _answer(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    body = (text + "\n").encode() if text else b""
    start: dict[str, Any] = {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            *_HEADERS,
            *headers,
        ],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
