"""app/views/format.py: every kind of number, at the edges of its units."""

import math

import pytest

from app.views import format as f


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (0, "0 B"),
        (1023.9, "1.00 KiB"),
        (1000, "1000 B"),
        (512 * 1024**2, "512 MiB"),
        (1023.6 * 1024**2, "1.00 GiB"),
        (14.2 * 1024**3, "14.2 GiB"),
        (9.994 * 1024**3, "9.99 GiB"),
        (9.996 * 1024**3, "10.0 GiB"),
        (141 * 1024**3, "141 GiB"),
        (3 * 1024**4, "3.00 TiB"),
        (-512 * 1024**2, "-512 MiB"),
    ],
)
def test_bytes_are_shown_in_binary_units_with_three_digits(num_bytes, words):
    assert f.format_bytes(num_bytes) == words


def test_a_column_has_one_unit_chosen_by_its_largest_number():
    gib, mib = f.column_unit(20 * f.GIB), f.column_unit(3.9 * f.GIB)
    assert (gib.name, gib.format(14.2 * f.GIB), gib.format(0.304 * f.GIB)) == ("GiB", "14.20", "0.30")
    assert (mib.name, mib.format(3.9 * f.GIB), mib.format(69.4 * f.MIB)) == ("MiB", "3,994", "69")


def test_signed_bytes_always_carry_their_sign():
    assert f.format_signed_bytes(1024**3) == "+1.00 GiB"
    assert f.format_signed_bytes(-(1024**3)) == "-1.00 GiB"
    assert f.format_signed_bytes(0) == "+0 B"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.042, "0.042 s"),
        (1.74, "1.7 s"),
        (42, "42 s"),
        (59.7, "1 min 0 s"),
        (185, "3 min 5 s"),
        (11520, "3 h 12 min"),
        (187200, "2 d 4 h"),
        (math.inf, "n/a"),
        (-1, "n/a"),
    ],
)
def test_durations(seconds, words):
    assert f.format_duration(seconds) == words


def test_rates_shares_and_counts():
    assert f.format_tokens_per_second(9412.3) == "9,412 tokens/s"
    assert f.format_tokens_per_second(3.14159) == "3.14 tokens/s"
    assert f.format_tokens_per_second(math.nan) == "n/a"
    assert f.format_share(0.92) == "92 %"
    assert f.format_share(0.034) == "3.4 %"
    assert f.format_count(16384) == "16,384"
    assert f.format_short_count(7_615_616_512) == "7.62 B"
    assert f.format_short_count(134_515_008) == "135 M"
    assert f.format_short_count(999_999_999) == "1.00 B"
    assert f.format_deviation(98.5, 100) == "-1.5 %"
    assert f.format_deviation(344.7, 100) == "+245 %"  # a column of eight holds it
    assert f.format_deviation(1, 0) == "n/a"
    assert f.format_loss(math.nan) == "nan"
    assert f.format_loss(None) == "n/a"


def test_paths_below_the_own_home_are_shown_with_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    assert f.format_path("/home/ann/runs/1") == "~/runs/1"
    assert f.format_path("/home/ann") == "~"
    assert f.format_path("/home/anna/runs") == "/home/anna/runs"
    monkeypatch.setenv("HOME", "/")
    assert f.format_path("/runs") == "/runs"
