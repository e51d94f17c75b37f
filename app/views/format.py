"""Numbers as words for people, one function a kind of number. The only place where bytes become GiB.

Called by every view, the CLI, the TUI and the web page.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4


def format_bytes(num_bytes: float) -> str:
    """Binary units, three significant digits: ``14.2 GiB``, ``512 MiB``, ``0 B``."""
    size = abs(num_bytes)
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        # 0.9995 so that 1023.6 MiB reads 1.00 GiB and not 1024 MiB
        if size >= 0.9995 * scale:
            return f"{_three_digits(num_bytes / scale)} {unit}"
    return f"{round(num_bytes)} B"


def format_gib(num_bytes: float) -> str:
    """A bare number of GiB for columns whose head names the unit: ``14.20``."""
    return f"{num_bytes / GIB:.2f}"


@dataclass(frozen=True, slots=True)
class ByteUnit:
    """One unit for a whole column, so that its numbers compare at a glance."""

    name: str
    scale: int
    digits: int

    def format(self, num_bytes: float) -> str:
        """The bare number; the head of the column names the unit."""
        return f"{num_bytes / self.scale:,.{self.digits}f}"


def column_unit(largest_bytes: float) -> ByteUnit:
    """GiB with two decimals, or MiB where the largest number is below 4 GiB (a small model, a CPU process)."""
    return ByteUnit("GiB", GIB, 2) if largest_bytes >= 4 * GIB else ByteUnit("MiB", MIB, 0)


def format_signed_bytes(num_bytes: float) -> str:
    """``+9.30 GiB``, ``-512 MiB``."""
    return ("+" if num_bytes >= 0 else "-") + format_bytes(abs(num_bytes))


def format_count(count: float) -> str:
    """``16,384``."""
    return f"{round(count):,}"


def format_short_count(count: float) -> str:
    """Parameters and the like: ``7.62 B``, ``134 M``, ``512``."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(count) >= 0.9995 * scale:
            return f"{_three_digits(count / scale)} {unit}"
    return str(round(count))


def format_share(fraction: float) -> str:
    """``92 %``; one decimal below 10 %."""
    percent = 100 * fraction
    return f"{percent:.0f} %" if abs(percent) >= 9.95 else f"{percent:.1f} %"


def format_deviation(actual: float, planned: float) -> str:
    """Measured against planned: ``-1.5 %``, ``+8.3 %``, ``+245 %``; ``n/a`` when nothing was planned."""
    if not planned:
        return "n/a"
    percent = 100 * (actual - planned) / planned
    return f"{percent:+.1f} %" if abs(percent) < 99.95 else f"{percent:+,.0f} %"


def format_tokens_per_second(rate: float) -> str:
    """``9,412 tokens/s``; two significant decimals below 10."""
    if rate <= 0 or not math.isfinite(rate):
        return "n/a"
    return f"{rate:,.0f} tokens/s" if rate >= 10 else f"{rate:.2f} tokens/s"


def format_duration(seconds: float) -> str:
    """``0.42 s``, ``42 s``, ``3 min 5 s``, ``3 h 12 min``, ``2 d 4 h``; ``n/a`` when unknown."""
    if not math.isfinite(seconds) or seconds < 0:
        return "n/a"
    if seconds < 9.95:
        return f"{seconds:.2g} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def format_clock(unix_time: float) -> str:
    """Local time of day: ``13:51:02``."""
    return time.strftime("%H:%M:%S", time.localtime(unix_time))


def format_date(unix_time: float) -> str:
    """Local date and minute: ``2026-11-29 13:51``."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_time))


def format_loss(loss: float | None) -> str:
    """Four decimals; ``nan`` and ``inf`` are shown as such, unknown is ``n/a``."""
    return "n/a" if loss is None else f"{loss:.4f}"


def format_learning_rate(rate: float | None) -> str:
    """``1.7e-04``, as trainers print it."""
    return "n/a" if rate is None else f"{rate:.1e}"


def format_path(path: str | Path) -> str:
    """A path as a person writes it: ``~`` for the own home folder."""
    text, home = str(path), os.path.expanduser("~")
    return "~" + text[len(home) :] if home != "/" and (text + "/").startswith(home + "/") else text


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"
