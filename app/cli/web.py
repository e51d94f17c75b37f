"""`longfit web`: the browser page, on 127.0.0.1. The address goes to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
import sys
from contextlib import suppress

from app.cli.parser import whole_number
from app.cli.run_arguments import add_runs_dir
from app.services.extras import require_extra
from app.services.locations import default_runs_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=whole_number, metavar="N", help="default: the first free one from 7860 on")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                        help="address to serve on; any but the loopback asks visitors for a token")  # fmt: skip
    parser.add_argument("--token", action="store_true",
                        help="ask for a token on 127.0.0.1 too: for machines that others log in to")  # fmt: skip
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", dest="hosts",
                        help="a further name this server is reached by, such as a proxy's (repeatable)")  # fmt: skip
    add_runs_dir(parser)


def run(args: argparse.Namespace) -> int:
    require_extra("web", "gradio", purpose="The browser page")
    from app.gui.server import Address, is_loopback, serve

    runs_root = args.runs_dir or default_runs_dir()

    def announce(address: Address) -> None:
        print(address.url, flush=True)
        advice = _advice(address.port, needs_token=address.token is not None, is_local=is_loopback(address.host))
        print("\n".join(advice), file=sys.stderr, flush=True)

    with suppress(KeyboardInterrupt):  # the server may also end by itself, when it had to cut a request short
        serve(
            runs_root=runs_root, host=args.host, port=args.port, require_token=args.token, extra_hosts=args.hosts,
            announce=announce,
        )  # fmt: skip
    print("The page is closed. Runs go on.", file=sys.stderr)
    return 0


def _advice(port: int, *, needs_token: bool, is_local: bool) -> list[str]:
    lines = ["Ctrl-C closes the page; runs go on."]
    if needs_token:
        lines.append("The address holds the token: whoever has it can start and stop runs as you.")
    if not is_local:
        lines.append("It is plain HTTP: on a network that others share, use ssh -L or a proxy with TLS instead.")
    elif os.environ.get("SSH_CONNECTION"):
        lines.append(
            f"From your own machine: ssh -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}"
        )
    return lines
