"""A KVFlow server as a child process: for the benchmarks, the demo and the tests."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx

__all__ = ["ServerError", "ServerProcess", "free_port"]

_STOP_S = 10.0
_POLL_S = 0.25
_PORTS = range(20000, 32000)
_PORT_TRIES = 64
_PORT_TAKEN = "address already in use"


class ServerError(RuntimeError):
    """A server that was started did not become ready; holds the end of its log."""


def free_port() -> int:
    """A loopback TCP port that nobody listens on at the moment.

    Below the range that systems give to outgoing connections: a server binds minutes
    after its port was chosen, and one of those could have taken it by then.
    """
    for port in random.SystemRandom().sample(_PORTS, _PORT_TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerError(f"no free port among {_PORT_TRIES} between 20000 and 32000")


class ServerProcess:
    """`kvflow serve ARGS` on a free loopback port, in a process group of its own.

        with ServerProcess(["--model-path", path, "--kvflow-mode", "evict"]) as server:
            httpx.get(f"{server.url}/get_server_info")

    `spawn` and `wait_ready` may be called apart, to start several at once. `env` is
    laid over this process's environment. Standard output and error go to `log_path`,
    a temporary file unless one is named. `command` is the `kvflow` to run, by default
    the one of this interpreter.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log_path: Path | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self.args = tuple(args)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._env = {**os.environ, **(env or {})}
        if log_path is None:
            descriptor, name = tempfile.mkstemp(prefix="kvflow-server-", suffix=".log")
            os.close(descriptor)
            log_path = Path(name)
        self.log_path = log_path
        self._command = tuple(
            command or (sys.executable, "-P", "-m", "kvflow_server.cli")
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the server, and of its group. Raises if never spawned."""
        if self._process is None:
            raise ServerError("the server has not been started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the server's main process runs."""
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start the process and return at once."""
        if self._process is not None:
            raise ServerError("a ServerProcess starts once; make another")
        network = ("--host", "127.0.0.1", "--port", str(self.port))
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "serve", *network, *self.args],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float = 300.0) -> None:
        """Block until the server answers /health with 200.

        Raises `ServerError` with the end of the log, after stopping the server, when
        the process ends first or the time is up.
        """
        deadline = time.monotonic() + timeout_s
        with httpx.Client(timeout=30, trust_env=False) as client:
            while self.alive and time.monotonic() < deadline:
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"{self.url}/health").status_code == 200:
                        return
                if _PORT_TAKEN in self.log_tail():
                    # SGLang would stay, with no one able to talk to it.
                    deadline = 0.0
                    break
                time.sleep(_POLL_S)
        why = f"not ready within {timeout_s:g} s"
        if not deadline:
            why = f"found its port {self.port} taken"
        elif not self.alive:
            why = "ended at start"
        self.stop()
        raise ServerError(f"server {why}, its log ends with:\n{self.log_tail()}")

    def stop(self) -> None:
        """End the server and every process of its group. Idempotent."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
        self.kill()

    def kill(self) -> None:
        """Kill the whole group at once, as a crash would. Idempotent."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the server's log."""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def __enter__(self) -> ServerProcess:
        self.spawn()
        try:
            self.wait_ready()
        except BaseException:  # Ctrl-C during the start, too
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
