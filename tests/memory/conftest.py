"""What tests of the memory share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from carm.memory import native


@pytest.fixture(params=["native", "numpy"], scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the compiled part, and without."""
    if request.param == "numpy":
        with native.without():
            yield
    elif native.library is None:
        pytest.skip("the compiled part is not there")
    else:
        yield
