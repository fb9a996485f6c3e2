"""What holds for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The same examples every time, and no limit on how long one takes, so that a busy machine fails nothing;
# `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile("carm", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("carm")


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, here and in processes that tests start, also where the tests run in the
    background: shells let jobs there ignore it, and tests that press it would wait for ever."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
