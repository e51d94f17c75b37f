"""Serves the web page until Ctrl-C: environment, socket, guard, Gradio. Called by app/cli/web.py.

The page is mounted on an ASGI application of our own instead of ``Blocks.launch()``: the address is bound here, no
GRADIO_* variable of the shell can change it, and nothing is started besides one uvicorn server.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.gui.guard import Guard
from planner.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

FIRST_PORT = 7860
NUM_PORTS_TRIED = 20
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the page is served. ``token`` None: nobody is asked for one."""

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        """The address to open, with the token when one is needed."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def serve(
    *,
    runs_root: Path,
    host: str,
    port: int | None,
    require_token: bool,
    extra_hosts: Iterable[str],
    announce: Callable[[Address], None],
) -> None:
    """Serve the page until Ctrl-C. ``announce`` is called once, when the socket is bound.

    Raises: ConfigError when the address cannot be bound.
    """
    isolate_environment(os.environ)
    bound = bind(host, port)
    bound_host, bound_port = bound.getsockname()[:2]
    try:
        address = Address(host=host, port=bound_port, token=token_for(bound_host, required=require_token))
        app = build_app(address, runs_root=runs_root, hosts=allowed_hosts(host, extra_hosts))
        announce(address)
        _run(app, bound)
    finally:
        bound.close()


def isolate_environment(environ: MutableMapping[str, str]) -> None:
    """To be called before gradio is imported: it reads its variables at import and at every turn.

    No GRADIO_* variable of the user's shell may open the page wider than asked, and nothing may call home.
    """
    for name in [name for name in environ if name.startswith("GRADIO_")]:
        del environ[name]
    environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_for(host: str, *, required: bool) -> str | None:
    """256 random bits for any address that others can reach; None where nobody is asked."""
    return secrets.token_urlsafe(32) if required or not is_loopback(host) else None


def bind(host: str, port: int | None) -> socket.socket:
    """A listening socket at ``port``, or at the first free one from 7860 on.

    Raises: ConfigError when the port is taken or the host is no address of this machine.
    """
    if port is not None and not 0 <= port < 65536:
        raise ConfigError(f"--port {port} is no port.", why="Ports are 0 (any free one) to 65535.")
    ports = [port] if port is not None else range(FIRST_PORT, FIRST_PORT + NUM_PORTS_TRIED)
    for candidate in ports:
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise ConfigError(f"{host} is no address to serve on.", why=str(error), fix=_HOST_FIX) from error
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(target)
            bound.listen()
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise ConfigError(f"Cannot serve on {host} port {candidate}.", why=str(error), fix=_HOST_FIX) from error
        return bound
    if port is not None:
        raise ConfigError(f"Port {port} of {host} is in use.", fix="Leave out --port to take the first free one.")
    last = FIRST_PORT + NUM_PORTS_TRIED - 1
    raise ConfigError(f"Ports {FIRST_PORT} to {last} of {host} are all in use.", fix="Name a free one with --port.")


_HOST_FIX = "Use 127.0.0.1, 0.0.0.0 or an address of this machine."


def allowed_hosts(host: str, extra_hosts: Iterable[str]) -> frozenset[str]:
    """Names by which this server may be called in a Host header."""
    hosts = {name.lower() for name in extra_hosts} | LOOPBACK_NAMES
    if is_loopback(host):
        return frozenset(hosts)
    if host not in ("0.0.0.0", "::"):
        return frozenset(hosts | {host.lower()})
    import psutil

    addresses = (entry for entries in psutil.net_if_addrs().values() for entry in entries)
    own = {entry.address.partition("%")[0] for entry in addresses if entry.family in (socket.AF_INET, socket.AF_INET6)}
    return frozenset(hosts | own | {socket.gethostname().lower(), socket.getfqdn().lower()})


def build_app(address: Address, *, runs_root: Path, hosts: frozenset[str]) -> ASGIApp:
    """The whole ASGI application: guard in front, Gradio behind, nothing of Gradio's that is not used."""
    import gradio as gr
    from fastapi import FastAPI

    from app.gui.page import build_page
    from app.gui.style import HEAD, style_sheet, theme

    gradio_app = gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        build_page(runs_root=runs_root, needs_token=address.token is not None),
        path="/",
        server_name=address.host,
        server_port=address.port,
        root_path="",
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        allowed_paths=[],
        show_error=True,
        theme=theme(),
        css=style_sheet(),
        head=HEAD,
    )
    # Cookies are shared by all ports of a host, so the port is in the name.
    return Guard(app=gradio_app, hosts=hosts, token=address.token, cookie=f"longfit-{address.port}")


def _run(app: ASGIApp, bound: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # the first request carries the token
        proxy_headers=False,
        server_header=False,
        date_header=False,
        ws="none",
        timeout_graceful_shutdown=1,  # open pages hold a stream that never ends by itself
    )
    uvicorn.Server(config).run(sockets=[bound])
