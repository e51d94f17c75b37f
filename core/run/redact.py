"""What looks like a secret is not written down. Called by everything that stores an environment or a command."""

from __future__ import annotations

import re
from collections.abc import Mapping

REDACTED = "<redacted>"
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|COOKIE|PRIVATE|API_?KEY|ACCESS_?KEY|_KEY$|AUTH", re.I
)
_SECRET_VALUES = (
    re.compile(r"\bhf_[A-Za-z0-9]{8,}"),
    re.compile(r"\b(?:sk|ghp|gho|github_pat|glpat|xox[bp])[-_][A-Za-z0-9_-]{8,}"),
    re.compile(r"\bAKIA[0-9A-Z]{12,}"),
    re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"),  # user:password@ of a URL
)


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def redact_text(text: str) -> str:
    for pattern in _SECRET_VALUES:
        text = pattern.sub(REDACTED, text)
    return text


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: REDACTED if is_secret_name(name) else redact_text(value) for name, value in environment.items()}
