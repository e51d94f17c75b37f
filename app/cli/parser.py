"""The argument parser of every verb: what is wrong with a command line in the words of every other error, and the
nearest name of what was misspelt."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from planner.errors import ConfigError, LongfitError

_INVALID_CHOICE = re.compile(
    r"argument (?P<argument>\S+): invalid choice: '(?P<value>.*)' \(choose from (?P<known>.*)\)"
)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit code 2. Sub-parsers are of the same class."""
        found = _INVALID_CHOICE.fullmatch(message)
        if found is None:
            print_error(ConfigError(f"{self.prog}: {message}.", fix=f"`{self.prog} --help` shows how it is called."))
        else:
            known = re.findall(r"'([^']*)'", found["known"])
            argument = found["argument"]
            name = f"{argument} {found['value']}" if argument.startswith("-") else repr(found["value"])
            print_error(
                ConfigError(
                    f"{self.prog}: there is no {name}.", why=f"It can be {', '.join(known)}.",
                    fix=nearest(found["value"], known) or f"`{self.prog} --help` says what each of them is.",
                )
            )  # fmt: skip
        sys.exit(ConfigError.exit_code)

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """Exit code 2 for words that no argument takes."""
        word = words[0]
        flags = [flag for action in self._actions for flag in action.option_strings]
        near = nearest(word.partition("=")[0], flags) if word.startswith("-") else ""
        error = ConfigError(
            f"{self.prog} does not know {word}." if word.startswith("-") else f"{self.prog}: {word!r} is one too many.",
            fix=near or f"`{self.prog} --help` shows how it is called.",
        )
        print_error(error)
        sys.exit(error.exit_code)


def whole_number(text: str) -> int:
    """An argument's ``type``. Raises: argparse.ArgumentTypeError that says how 16k is written."""
    try:
        return int(text.replace("_", ""))
    except ValueError:
        thousands = re.fullmatch(r"(\d+)[kK]", text.strip())
        hint = f"; write {1024 * int(thousands[1])}" if thousands else ""
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number{hint}") from None


def nearest(name: str, known: Sequence[str]) -> str:
    """``Did you mean --ladder?``, or nothing."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else ""


def print_error(error: LongfitError) -> None:
    print(f"error: {error.what}", file=sys.stderr)
    if error.why:
        print(f"  why: {error.why}", file=sys.stderr)
    if error.fix:
        print(f"  fix: {error.fix}", file=sys.stderr)
