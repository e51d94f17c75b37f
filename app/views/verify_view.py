"""Closed form against dry run, as text and as JSON. Called by `longfit verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.views.format import format_count, format_gib

if TYPE_CHECKING:
    from app.services.verify import Verified

WARNING = "a plan on these versions may be off"
ENGINES = {"module": "modules", "layer": "layer engine"}


def verified_text(verified: Verified) -> str:
    """One configuration: a line for each instant, and one for the peak."""
    config = verified.case.resolved.config
    rows = [(difference.instant.replace("_", " "), difference) for difference in verified.differences]
    lines = [
        f"{verified.case.resolved.model.name}, {format_count(config.max_length)} tokens, {ENGINES[config.engine]}: "
        f"{verified.case.title}",
        f"  {'instant':20} {'planned GiB':>12} {'dry run GiB':>12} {'difference':>11}",
    ]
    for name, difference in (*rows, ("peak", verified.peak)):
        mark = "  OFF" if difference.is_off else ""
        lines.append(
            f"  {name:20} {format_gib(difference.planned_bytes):>12} {format_gib(difference.dry_run_bytes):>12} "
            f"{_percent(difference.error):>11}{mark}"
        )
    return "\n".join(lines)


def summary_text(all_verified: list[Verified], versions: dict[str, str]) -> str:
    errors = [abs(verified.peak.error) for verified in all_verified]
    off = [verified for verified in all_verified if verified.off]
    installed = ", ".join(f"{name} {version}" for name, version in versions.items())
    count = f"{len(all_verified)} configuration{'s' if len(all_verified) > 1 else ''}"
    lines = [
        f"{count} on {installed}: peak off by {100 * sum(errors) / len(errors):.2f} % in "
        f"the mean, {100 * max(errors):.2f} % at worst"
    ]
    lines += [
        f"  off: {verified.case.resolved.model.name}, {verified.case.label}, {difference.instant.replace('_', ' ')} "
        f"{_percent(difference.error)}"
        for verified in off
        for difference in verified.off
    ]
    return "\n".join(lines + ([WARNING] if off else []))


def verified_dict(all_verified: list[Verified], versions: dict[str, str]) -> dict[str, Any]:
    return {
        "schema": 1,
        "ok": not any(verified.off for verified in all_verified),
        "versions": versions,
        "configurations": [
            {
                "model": verified.case.resolved.model.name,
                "family": verified.case.resolved.model.family,
                "title": verified.case.title,
                "engine": verified.case.resolved.config.engine,
                "max_length": verified.case.resolved.config.max_length,
                "config_hash": verified.case.resolved.config.hash(),
                "peak": _as_dict(verified.peak),
                "instants": [_as_dict(difference) for difference in verified.differences],
            }
            for verified in all_verified
        ],
    }


def _as_dict(difference: Any) -> dict[str, Any]:
    return {
        "instant": difference.instant, "planned_bytes": difference.planned_bytes,
        "dry_run_bytes": difference.dry_run_bytes, "error": difference.error, "is_off": difference.is_off,
    }  # fmt: skip


def _percent(fraction: float) -> str:
    return f"{100 * fraction:+.2f} %"
