"""What all tests need."""

from __future__ import annotations

import contextlib
import gc
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

with contextlib.suppress(ImportError):  # some environments have no such tests
    from hypothesis import settings

    # A deadline would be a timed assertion, and fails on a busy machine.
    settings.register_profile("kvflow", deadline=None)
    settings.load_profile("kvflow")

# Shells start what they run in the background with Ctrl-C ignored, programs inherit that,
# and those that a test interrupts would not hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ON_REAL_SERVER = "::test_a_real_server_"
"""What the conformance kit calls its tests on a real server."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What the workers of pytest-xdist share out: files, whose fixtures are then made
    once, and as one heap the tests of the real server, which is started once."""
    # Its own `loadgroup` does nothing under pytest 9.2, whose nodes keep no `_nodeid`.
    from xdist.scheduler import LoadScopeScheduling

    class ByFixtures(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            on_server = ON_REAL_SERVER in nodeid
            return ON_REAL_SERVER if on_server else nodeid.partition("::")[0]

    return ByFixtures(config, log)


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
