"""A server process that cannot start says why and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil
import pytest

from kvflow_server.edge.launcher import ServerError, ServerProcess


def living(group: int) -> list[psutil.Process]:
    """Processes of a process group that are neither gone nor waiting to be reaped."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            same = os.getpgid(process.pid) == group
            if same and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def shell(script: str, log: Path) -> ServerProcess:
    return ServerProcess([], command=("/bin/sh", "-c", script), log_path=log)


def test_a_server_that_ends_at_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    server = shell("echo out of memory; exit 3", tmp_path / "log")
    with (
        pytest.raises(ServerError, match=r"ended at start(.|\n)*out of memory"),
        server,
    ):
        pass


def test_a_server_that_is_never_ready_is_stopped(tmp_path: Path) -> None:
    server = shell("echo thinking; sleep 1000", tmp_path / "log")
    server.spawn()
    with pytest.raises(ServerError, match=r"not ready within 0(.|\n)*thinking"):
        server.wait_ready(timeout_s=0)
    assert not server.alive


def test_stopping_ends_child_processes_that_ignore_it(tmp_path: Path) -> None:
    server = shell(
        "sh -c 'trap \"\" TERM; echo up; sleep 1000' & exec sleep 1000",
        tmp_path / "log",
    )
    server.spawn()
    while "up" not in server.log_tail():
        time.sleep(0.01)
    assert len(living(server.pid)) > 1
    server.stop()
    # A killed process goes when the kernel gets to it; a survivor hits the time limit.
    while living(server.pid):
        time.sleep(0.01)


def test_stopping_twice_is_allowed(tmp_path: Path) -> None:
    server = shell("sleep 1000", tmp_path / "log")
    server.spawn()
    server.stop()
    server.stop()
    assert not server.alive


def test_two_servers_get_two_ports(tmp_path: Path) -> None:
    first, second = shell("", tmp_path / "a"), shell("", tmp_path / "b")
    assert first.url != second.url
