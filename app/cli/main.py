"""The console script: finds the verb, imports only its module, and turns errors into words and exit codes."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from app.cli.parser import Parser, print_error
from app.services.terminal import escape_what_cannot_be_shown
from planner.errors import EnvironmentProblem, LongfitError

_DISK_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})

# verb -> (module, help). Help stands here so that `longfit --help` imports no verb.
VERBS: dict[str, tuple[str, str]] = {
    "plan": ("app.cli.plan", "what each GPU will hold, whether it fits, how fast, and what would be better"),
    "fit": ("app.cli.fit", "the longest length, the largest batch, how many GPUs or which GPU"),
    "rehearse": ("app.cli.rehearse", "prove a plan on this machine: true shapes, random weights, no download"),
    "verify": ("app.cli.verify", "the planner against the installed transformers and peft, by dry runs; no GPU"),
    "data": ("app.cli.data", "what becomes of each row of a data set"),
    "train": ("app.cli.train", "plan, then train; Ctrl-C detaches, the run goes on"),
    "sft": ("app.cli.sft", "the flags of `swift sft`: findings, plan, then train"),
    "import": ("app.cli.import_", "a pasted command or configuration becomes a preset"),
    "demo": ("app.cli.demo", "train a real small model on real documents, watched, in minutes"),
    "runs": ("app.cli.runs", "the runs on this disk"),
    "attach": ("app.cli.attach", "follow a run"),
    "stop": ("app.cli.stop", "save and stop a run"),
    "resume": ("app.cli.resume", "go on with a stopped or lost run"),
    "logs": ("app.cli.logs", "the log of a run"),
    "postmortem": ("app.cli.postmortem", "why a run failed, and what would fit"),
    "infer": ("app.cli.infer", "answer a prompt with a trained adapter"),
    "export": ("app.cli.export", "what a run has trained, in a folder for other tools"),
    "preset": ("app.cli.preset", "list, show or save presets"),
    "gpus": ("app.cli.gpus", "GPUs of this machine and of the catalog"),
    "models": ("app.cli.models", "models of the catalog"),
    "completion": ("app.cli.completion", "a script that lets the shell complete verbs, flags, presets and runs"),
    "doctor": ("app.cli.doctor", "is this installation sound?"),
    "tui": ("app.cli.tui", "the terminal interface"),
    "web": ("app.cli.web", "the browser page, on 127.0.0.1"),
}


def build_parser(*filled: str) -> Parser:
    """The parser; only the verbs in ``filled`` get their arguments, the others are names with help."""
    parser = Parser(
        prog="longfit", description="Plan, train and watch long-context fine-tuning.",
        epilog="exit codes: 0 ok, 1 run failed, 2 bad input, 3 does not fit, 4 out of memory, 5 environment, "
        "6 run not found or lost, 130 interrupted",
    )  # fmt: skip
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, (module, help_text) in VERBS.items():
        sub = verbs.add_parser(name, help=help_text, description=help_text)
        if name in filled:
            import_module(module).add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    escape_what_cannot_be_shown()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # what cannot be written is told here, and not by the interpreter as it leaves
        return code
    except LongfitError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe left: `longfit runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _DISK_FAULTS:
            raise
        name = f"{error.filename}: " if error.filename else ""
        print_error(EnvironmentProblem(f"{name}{error.strerror}.", fix="Free space there, or choose another folder."))
        return EnvironmentProblem.exit_code


def _run(arguments: list[str]) -> int:
    """The verb's exit code. Raises: what a verb raises, SystemExit for --help and a command line that is wrong."""
    verb = next((a for a in arguments if not a.startswith("-")), None)
    if verb is not None and verb not in VERBS:
        verb = None
    parser = build_parser(*([] if verb is None else [verb]))
    args, args.rest = parser.parse_known_args(arguments)
    if args.rest and not getattr(args, "takes_rest", False):  # sft and import read the flags of other tools
        _parser_of(parser, args).refuse_unknown(args.rest)
    if args.version:
        from importlib.metadata import version

        print(f"longfit {version('longfit')}")
        return 0
    if args.verb is None:
        parser.print_help()
        return 0
    return int(import_module(VERBS[args.verb][0]).run(args))


def _parser_of(parser: Parser, args: argparse.Namespace) -> Parser:
    """The parser of the verb that was named, and of its action where it has some (`preset save`)."""
    for dest in ("verb", "action"):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction) and action.dest == dest and getattr(args, dest, None):
                parser = action.choices[getattr(args, dest)]
    return parser


if __name__ == "__main__":
    sys.exit(main())
