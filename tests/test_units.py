from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.errors import UsageError
from chappe.units import format_duration, format_rate, format_size, parse_duration, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("100mbit", 12.5e6),
        ("2.5gbit", 312.5e6),
        ("12MB", 12e6),
        ("12MB/s", 12e6),
        ("64KiB", 65536),
        ("800 kbit", 1e5),
        ("8Mbit/s", 1e6),
    ],
)
def test_rates(text: str, bytes_per_s: float) -> None:
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize(
    "text", ["", "100", "mbit", "-1mbit", "0mbit", "nan mbit", "1e999mbit", "12mB", "12 parsecs", "1/2mbit"]
)
def test_refuses_what_is_no_rate_and_names_it(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rate(text)
    assert repr(text) in str(caught.value)


def test_sizes() -> None:
    assert parse_size("64MiB") == 64 << 20
    assert parse_size("16.4GB") == 16_400_000_000
    assert parse_size("123") == 123
    with pytest.raises(UsageError):
        parse_size("12 mbit")


def test_times() -> None:
    assert parse_duration("90s") == 90
    assert parse_duration("15m") == 900
    assert parse_duration("250ms") == 0.25
    for text in ("90", "1 fortnight", "-3s"):
        with pytest.raises(UsageError):
            parse_duration(text)


@given(st.floats(100, 1e13))
def test_a_shown_rate_reads_back_close_to_what_it_was(bits: float) -> None:
    shown = format_rate(bits / 8)
    assert parse_rate(shown.replace(" ", "").replace("/s", "")) * 8 == pytest.approx(bits, rel=0.006)


def test_what_people_read() -> None:
    assert format_rate(12.5e6) == "100 Mbit/s"
    assert format_size(90_900_000) == "90.9 MB"
    assert format_size(12) == "12 B"
    assert [format_duration(t) for t in (8.23, 185, 3720)] == ["8.2 s", "3 min 05 s", "1 h 02 min"]
