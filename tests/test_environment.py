"""The set-up script: what it takes for right, and what it makes again."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "tools" / "environment.py"


@pytest.fixture(scope="module")
def environment() -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def shared(environment: ModuleType, tmp_path: Path) -> Path:
    """A finished shared environment: this one's packages, linked."""
    path = tmp_path / "client"
    site = path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (path / "bin").mkdir()
    (path / "bin" / "python").symlink_to(sys.executable)
    real = environment.shared_path("client") / "lib" / "python3.11" / "site-packages"
    for entry in real.iterdir():
        (site / entry.name).symlink_to(entry)
    (path / environment.MARKER).write_text("\n".join(_pins(environment)))
    return path


def test_an_environment_as_the_lock_file_says_is_right(
    environment: ModuleType, shared: Path
) -> None:
    assert environment._fault(shared, _pins(environment)) is None


def test_an_unfinished_environment_is_not(
    environment: ModuleType, shared: Path
) -> None:
    (shared / environment.MARKER).unlink()
    fault = environment._fault(shared, _pins(environment))
    assert fault == "an unfinished installation"


def test_one_that_lost_a_package_is_not(environment: ModuleType, shared: Path) -> None:
    next(shared.rglob("rich-*.dist-info")).unlink()
    assert "rich==" in environment._fault(shared, _pins(environment))


def test_one_whose_python_is_gone_is_not(environment: ModuleType, shared: Path) -> None:
    (shared / "bin" / "python").unlink()
    fault = environment._fault(shared, _pins(environment))
    assert fault == "its interpreter does not run"


def test_another_pin_means_another_environment(
    environment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements").mkdir()
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    paths = []
    for text in ("a==1\nb==1\n", "# words\na==1\n\nb==1", "a==1\nb==2\n"):
        (tmp_path / "requirements" / "client.lock").write_text(text)
        paths.append(environment.shared_path("client"))
    assert paths[0] == paths[1]
    assert paths[0] != paths[2]


def test_the_store_can_be_chosen(
    environment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KVFLOW_ENV_DIR", raising=False)
    assert environment.store() == tmp_path / "cache" / "kvflow" / "envs"
    monkeypatch.setenv("KVFLOW_ENV_DIR", str(tmp_path / "mine"))
    assert environment.store() == tmp_path / "mine"


def test_two_set_ups_wait_for_each_other(
    environment: ModuleType, tmp_path: Path
) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import environment\n"
        f"from pathlib import Path\n"
        f"with environment._exclusive(Path({str(tmp_path / 'a.lock')!r})):\n"
        f"    print('in', flush=True)"
    )
    with environment._exclusive(tmp_path / "a.lock"):
        other = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert other.stderr
        assert other.stderr.readline() == "a: waiting for another set-up ...\n"
        assert other.poll() is None
    out, _ = other.communicate()
    assert out == "in\n"


def test_a_right_environment_is_left_alone_and_nothing_is_printed() -> None:
    _script("setup", "client")
    stamp = ROOT / ".venv" / "client" / "kvflow-stamp"
    before = stamp.stat().st_mtime_ns
    done = _script("setup", "client")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert stamp.stat().st_mtime_ns == before


def test_an_unknown_environment_is_refused_by_name() -> None:
    done = _script("setup", "sevrer")
    assert done.returncode == 1
    assert "sevrer" in done.stderr


def _script(*args: str) -> subprocess.CompletedProcess[str]:
    # By the real interpreter, as make does: not by the environment's own.
    python = os.path.realpath(sys.executable)
    return subprocess.run([python, SCRIPT, *args], capture_output=True, text=True)


def _pins(environment: ModuleType) -> list[str]:
    pins: list[str] = environment.pins(environment.lock_path("client"))
    return pins
