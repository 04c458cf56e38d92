"""Settings that hold for every test."""

from __future__ import annotations

from hypothesis import settings

# These machines are shared: no test asserts a time, hypothesis included.
settings.register_profile("chappe", deadline=None)
settings.load_profile("chappe")
