"""Where things lie on disk: presets, caches and runs. One place, so that a test can move them with two variables."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Converted models, demo data and tokenised sets. LONGFIT_CACHE moves it."""
    base = os.environ.get("LONGFIT_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longfit"


def user_presets_dir() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "longfit" / "presets"


def project_presets_dir() -> Path:
    return Path.cwd() / ".longfit" / "presets"


def built_in_presets_dir() -> Path:
    """The same answer for a wheel and for an editable install: beside the package itself."""
    import presets

    return Path(presets.__path__[0])


def default_runs_dir() -> Path:
    return Path(os.environ.get("LONGFIT_RUNS") or "runs")
