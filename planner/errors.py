"""The exception tree of longfit, raised by every layer and printed by every face.

LongfitError
├── ConfigError       the user's input: preset, flag, file, data        (ValueError,   exit code 2)
├── DoesNotFit        the plan says that it cannot run on this hardware (ValueError,   exit code 3)
├── EnvironmentProblem  a package, driver or device is missing          (RuntimeError, exit code 5)
├── RunNotFound       no such run, or it is lost                        (RuntimeError, exit code 6)
└── LaunchError       processes could not be started or died            (RuntimeError, exit code 1)
"""

from __future__ import annotations


class LongfitError(Exception):
    """What happened, why, and what to do, each a sentence with the numbers in it."""

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what = what
        self.why = why
        self.fix = fix
        super().__init__(" ".join(part for part in (what, why, fix) if part))


class ConfigError(LongfitError, ValueError):
    exit_code = 2


class DoesNotFit(LongfitError, ValueError):
    exit_code = 3


class EnvironmentProblem(LongfitError, RuntimeError):
    exit_code = 5


class RunNotFound(LongfitError, RuntimeError):
    exit_code = 6


class LaunchError(LongfitError, RuntimeError):
    exit_code = 1
