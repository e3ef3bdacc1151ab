"""One real KVFlow server for the conformance of every adapter in this environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvflow_server.edge.launcher import ServerProcess

ROOT = Path(__file__).resolve().parent.parent.parent
SERVER_PYTHON = ROOT / ".venv" / "server" / "bin" / "python"
SERVE = """
import sys
from kvflow_server.cli import main
from kvflow_server.emulated.tiny import SMALL_DIMS, tiny_model
if __name__ == "__main__":
    sys.argv += ["--model-path", str(tiny_model(SMALL_DIMS))]
    main()
"""
"""`kvflow serve` in the server environment, which alone can make the tiny model."""


@pytest.fixture(scope="session")
def kvflow_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a real server, without an API key."""
    server = ServerProcess(
        [
            *("--emulated", "--max-total-tokens", "4096", "--hicache-ratio", "2"),
            *("--chunked-prefill-size", "512", "--context-length", "2048"),
        ],
        env={"KVFLOW_DEBUG": "1"},
        log_path=tmp_path_factory.mktemp("server") / "server.log",
        command=[str(SERVER_PYTHON), "-P", "-c", SERVE],
    )
    with server:
        yield server.url
