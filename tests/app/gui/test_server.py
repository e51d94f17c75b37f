"""Where the page is served: loopback by default, a token elsewhere, and nothing the shell says can change that."""

from __future__ import annotations

import socket

import pytest

from app.gui.server import Address, allowed_hosts, bind, is_loopback, isolate_environment, token_for
from planner.errors import ConfigError


def test_no_gradio_variable_of_the_shell_survives() -> None:
    environ = {"GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SHARE": "True", "GRADIO_ALLOWED_PATHS": "/", "HOME": "/root"}
    isolate_environment(environ)
    assert environ == {"HOME": "/root", "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.5", False), ("example.org", False)],
)  # fmt: skip
def test_loopback_is_recognised(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_any_address_but_the_loopback_needs_a_token_of_256_bits() -> None:
    assert token_for("127.0.0.1", required=False) is None
    tokens = {token_for(host, required=False) for host in ("0.0.0.0", "::", "10.0.0.5")}
    tokens.add(token_for("127.0.0.1", required=True))
    assert len(tokens) == 4
    assert all(token is not None and len(token) >= 43 for token in tokens)  # 43 characters of base64 hold 256 bits


def test_the_address_carries_the_token_once_and_names_a_reachable_host() -> None:
    assert Address(host="127.0.0.1", port=7860, token=None).url == "http://127.0.0.1:7860/"
    assert Address(host="::1", port=1, token="x").url == "http://[::1]:1/?token=x"
    url = Address(host="0.0.0.0", port=1, token="x").url
    assert url == f"http://{socket.gethostname()}:1/?token=x"


def test_allowed_hosts_are_loopback_names_and_what_was_asked_for() -> None:
    assert allowed_hosts("127.0.0.1", []) == {"127.0.0.1", "localhost", "::1"}
    assert "hub.example" in allowed_hosts("127.0.0.1", ["HUB.example"])
    assert allowed_hosts("10.0.0.5", []) == {"127.0.0.1", "localhost", "::1", "10.0.0.5"}


def test_on_all_addresses_the_names_of_this_machine_are_allowed() -> None:
    hosts = allowed_hosts("0.0.0.0", [])
    assert socket.gethostname().lower() in hosts
    assert "0.0.0.0" not in hosts
    assert "evil.example" not in hosts


def test_the_next_port_is_taken_when_the_first_is_busy() -> None:
    with bind("127.0.0.1", None) as first, bind("127.0.0.1", None) as second:
        assert first.getsockname()[0] == second.getsockname()[0] == "127.0.0.1"
        assert first.getsockname()[1] != second.getsockname()[1]


def test_a_named_port_that_is_busy_is_refused_with_its_number() -> None:
    with bind("127.0.0.1", None) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"Port {port} of 127\.0\.0\.1 is in use.*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match=rf"--port {port} is no port"):
        bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no such name", "999.1.1.1"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=host):
        bind(host, None)
