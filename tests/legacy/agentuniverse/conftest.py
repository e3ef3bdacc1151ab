"""One agentUniverse application for all tests: it is a singleton of its process."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentuniverse.base.agentuniverse import AgentUniverse

APP = Path(__file__).resolve().parent / "peer_app"


@pytest.fixture(scope="session", autouse=True)
def application() -> None:
    with pytest.MonkeyPatch.context() as patch:
        # It finds components by the name of their package.
        patch.syspath_prepend(str(APP.parent))
        AgentUniverse().start(config_path=str(APP / "config.toml"), core_mode=True)
