"""Models are made once, whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kvflow_server.emulated.models import (
    CACHE_ENV,
    cache_dir,
    fingerprint,
    materialize,
)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(CACHE_ENV, str(tmp_path))
    return tmp_path


def write_weights(path: Path) -> None:
    (path / "weights").write_text("whole")


def test_a_model_is_made_at_its_first_use() -> None:
    assert (materialize("model", write_weights) / "weights").read_text() == "whole"


def test_a_cached_model_is_not_made_again() -> None:
    first = materialize("model", write_weights)
    assert materialize("model", lambda path: pytest.fail("made twice")) == first


def test_a_model_that_could_not_be_made_leaves_nothing(own_cache: Path) -> None:
    def fail(path: Path) -> None:
        write_weights(path)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        materialize("model", fail)
    assert [entry.name for entry in cache_dir().iterdir() if entry.is_dir()] == []


def test_a_model_wanted_by_several_at_once_is_made_once() -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        write_weights(path)

    threads = [
        threading.Thread(target=materialize, args=("model", make)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_the_cache_lies_in_the_users_cache_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(CACHE_ENV)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "kvflow" / "models"


def test_a_fingerprint_changes_with_every_part_of_the_recipe() -> None:
    prints = {fingerprint({"a": a, "b": b}) for a in (1, 2) for b in (1, 2)}
    assert len(prints) == 4


def test_a_fingerprint_does_not_depend_on_the_order_of_the_recipe() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
