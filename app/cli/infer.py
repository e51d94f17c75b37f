"""`longfit infer`: answer a prompt with what a run has trained, in a process of its own (this one imports no torch)."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
from pathlib import Path

from app.cli.parser import whole_number
from app.cli.run_arguments import add_runs_dir
from app.services.models import find_model
from app.services.runs import find_run
from core.run.interpreter import child_environment, python_argv
from planner.errors import ConfigError, RunNotFound


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="RUN_OR_MODEL", help="a run (id, the beginning or end of it, folder, last), or a model"
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the question; - reads standard input")
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument(
        "--step", type=whole_number, metavar="N", help="a run's checkpoint of this step instead of its newest"
    )
    parser.add_argument("--base", action="store_true", help="a run's model before its training, to compare")
    parser.add_argument("--adapter", metavar="DIR", help="a folder with adapter_config.json, for a model")
    parser.add_argument("--max-new-tokens", type=whole_number, default=256, metavar="N", help="at most (default 256)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="above temperature 0: of the likeliest"
                        " tokens that together reach this share (default 1, all)")  # fmt: skip
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="of the draws above temperature 0")
    add_runs_dir(parser)


def run(args: argparse.Namespace) -> int:
    """The exit code of core.infer: 0, 2 bad input, 4 out of memory, 5 no hub in reach."""
    _check_sampling(args)
    command = [
        *python_argv("-m", "core.infer"), *_source(args), f"--prompt={args.prompt}",
        "--max-new-tokens", str(args.max_new_tokens), "--temperature", str(args.temperature),
        "--top-p", str(args.top_p), "--seed", str(args.seed),
    ]  # fmt: skip
    if args.system is not None:
        command.append(f"--system={args.system}")
    # Ctrl-C ends this process, which ends the child: a traceback of the child's own would say nothing
    return subprocess.run(
        command, env=child_environment(os.environ), check=False, preexec_fn=_ignore_interrupts
    ).returncode


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _check_sampling(args: argparse.Namespace) -> None:
    """Raises: ConfigError before a model is loaded in vain."""
    if args.max_new_tokens < 1:
        raise ConfigError(f"--max-new-tokens is {args.max_new_tokens}.", why="The least it can be is 1.")
    if not 0 <= args.temperature < float("inf"):
        raise ConfigError(f"--temperature is {args.temperature:g}.", why="It can be 0 (greedy) or above.")
    if not 0 < args.top_p <= 1:
        raise ConfigError(f"--top-p is {args.top_p:g}.", why="It is a share: above 0, and 1 at most.")


def _source(args: argparse.Namespace) -> list[str]:
    """Raises: ConfigError when it is neither a run nor a model, or a flag belongs to the other one."""
    try:
        directory = find_run(args.source, args.runs_dir)
    except RunNotFound as not_a_run:
        try:
            _, model = find_model(args.source)
        except ConfigError as not_a_model:
            raise ConfigError(
                f"{args.source!r} is neither a run nor a model.", why=not_a_model.what,
                fix=" ".join(words for words in (not_a_run.fix, not_a_model.fix) if words),
            ) from None  # fmt: skip
        if args.step is not None or args.base:
            raise ConfigError("--step and --base belong to a run.", why=f"{args.source!r} is a model.") from None
        if args.adapter and not (Path(args.adapter).expanduser() / "adapter_config.json").is_file():
            raise ConfigError(
                f"There is no adapter in {args.adapter}.", why="It would hold an adapter_config.json.",
                fix="Give its folder, such as runs/ID/checkpoints/step-N, or name the run alone.",
            ) from None  # fmt: skip
        return ["--model", model, *(["--adapter", args.adapter] if args.adapter else [])]
    if args.adapter:
        raise ConfigError("--adapter belongs to a model.", why=f"{args.source!r} is a run, which has its own adapter.")
    step = [] if args.step is None else ["--step", str(args.step)]
    return ["--run", str(directory.path), *step, *(["--base"] if args.base else [])]
