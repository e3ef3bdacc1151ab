"""What all tests need."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _quiet_leftovers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect what frameworks leave open before it fails a test of another module.

    Their async OpenAI clients are never closed, and go when the collector comes round.
    """
    yield
    path = request.path
    if "integrations" in path.parts or path.name.startswith("test_examples"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
