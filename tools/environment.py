"""Makes the environments of KVFlow. Standard library only.

    python3.11 tools/environment.py setup [client] [server] [ag2] [ag2_network] ...
    python3.11 tools/environment.py lock  [client] [server] [ag2] [ag2_network] ...
    python3.11 tools/environment.py prune

SGLang pins openai 2.8 and the frameworks want 3.x, so there are two environments.
A framework that pins what is older still has one of its own, made only when it is
named. Each has two halves:

    <store>/<name>-<python>-<key>   dependencies only, exactly what the lock file says;
                                    the key is a hash of it. Every checkout with the
                                    same lock file shares it. A marker is written last.
    .venv/<name>                    thin: its site-packages adds the shared ones by a
                                    .pth file and holds the checkout, installed in
                                    editable mode. Code, commands and entry points come
                                    from here alone.

The store is ``$KVFLOW_ENV_DIR``, else ``kvflow/envs`` in the user's cache folder.
Progress goes to stderr, nothing to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("client", "server")
LEGACY = ("ag2", "ag2_network", "agentuniverse")
"""Made only when they are named: for `make test-legacy`."""
PYTHON = (3, 11)
MARKER = "kvflow-complete"
"""In a shared environment: holds the lock file's pins; its age is the last use."""
STAMP = "kvflow-stamp"
"""In a thin environment: what it was made from."""
DISK_GB = {"client": 1, "server": 14, "ag2": 1, "ag2_network": 1, "agentuniverse": 2}
"""Free space an installation needs, with what pip unpacks on the way."""


SIZES = {
    "client": "a minute",
    "server": "11 GB, five to ten minutes",
    "ag2": "a minute",
    "ag2_network": "a minute",
    "agentuniverse": "1 GB, a few minutes",
}


Arg: TypeAlias = str | Path


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes the environments of KVFlow.")
    parser.add_argument("command", choices=["setup", "lock", "prune"])
    parser.add_argument("names", nargs="*", metavar="|".join([*NAMES, *LEGACY]))
    args = parser.parse_args(argv)
    names = args.names or list(NAMES)
    try:
        if unknown := set(names) - {*NAMES, *LEGACY}:
            raise SetupError(f"no environment {unknown}, there are {NAMES + LEGACY}")
        _check_python()
        if args.command == "prune":
            prune()
        else:
            for name in names:
                (lock if args.command == "lock" else setup)(name)
    except SetupError as error:
        print(f"\nkvflow set-up failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def setup(name: str) -> None:
    """Make `name` right, both halves; a right one is left as it is."""
    shared = shared_path(name)
    lines = pins(lock_path(name))
    if _fault(shared, lines) is not None:
        with _exclusive(shared.with_name(f"{shared.name}.lock")):
            fault = _fault(shared, lines)
            if fault is not None:
                _build_shared(name, shared, lines, fault)
    os.utime(shared / MARKER)
    thin = ROOT / ".venv" / name
    with _exclusive(ROOT / ".venv" / f"{name}.lock"):
        _make_thin(name, thin, shared)


def lock(name: str) -> None:
    """Resolve ``requirements/<name>*.in`` again and rewrite the lock file."""
    folder = ROOT / "requirements"
    with tempfile.TemporaryDirectory() as scratch:
        step = _Step(name, "resolving")
        python = _seed(Path(scratch) / "seed", None)
        report = Path(scratch) / "report.json"
        command: list[Arg] = ["install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--report", report, "-r", folder / f"{name}.in"]
        _pip(python, command, Path(scratch) / "pip.log", step)
        found = json.loads(report.read_text())["install"]
    lines = [f"{i['metadata']['name']}=={i['metadata']['version']}" for i in found]
    extra = folder / f"{name}-nodeps.in"
    if extra.exists():
        lines += pins(extra)
    lines.sort(key=str.lower)
    head = f"# Made by `make lock` for CPython {PYTHON[0]}.{PYTHON[1]}, Linux x86-64.\n"
    lock_path(name).write_text(head + "\n".join(lines) + "\n")
    step.done(f"{len(lines)} packages")


def prune() -> None:
    """Remove the shared environments that this checkout's lock files do not name."""
    keep = {shared_path(name).name for name in NAMES + LEGACY}
    for marker in store().glob(f"*/{MARKER}"):
        shared = marker.parent
        if shared.name not in keep:
            with _exclusive(shared.with_name(f"{shared.name}.lock")):
                step = _Step(shared.name, "removing")
                shutil.rmtree(shared)
                step.done()


def store() -> Path:
    """The folder of the shared environments."""
    if chosen := os.environ.get("KVFLOW_ENV_DIR"):
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "kvflow" / "envs"


def lock_path(name: str) -> Path:
    return ROOT / "requirements" / f"{name}.lock"


def shared_path(name: str) -> Path:
    """Where the shared half of `name` belongs, made or not."""
    text = "\n".join(pins(lock_path(name)))
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    python = f"cp{PYTHON[0]}{PYTHON[1]}-{platform.machine()}"
    return store() / f"{name}-{python}-{key}"


def pins(path: Path) -> list[str]:
    """The ``name==version`` lines of a lock file."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _check_python() -> None:
    if sys.version_info[:2] != PYTHON or sys.platform != "linux":
        raise SetupError(
            f"the lock files are for Python {PYTHON[0]}.{PYTHON[1]} on Linux, this is "
            f"{platform.python_version()} on {sys.platform} ({sys.executable}). "
            "Name another one: make PYTHON=/path/to/python3.11"
        )


def _fault(shared: Path, lines: list[str]) -> str | None:
    """Why a shared environment cannot be used as it is, or None."""
    if not shared.exists():
        return "not there yet"
    marker = shared / MARKER
    if not marker.exists():
        return "an unfinished installation"
    if marker.read_text().splitlines() != lines:
        return "made from another lock file"
    there = {
        _canonical(*d.stem.rsplit("-", 1)) for d in _site(shared).glob("*.dist-info")
    }
    wanted = {_canonical(*line.split("==")) for line in lines}
    if different := sorted(there ^ wanted):
        return f"not what the lock file says: {', '.join(different[:5])}"
    if not _runs(shared, "import pip"):
        return "its interpreter does not run"
    return None


def _build_shared(name: str, shared: Path, lines: list[str], fault: str) -> None:
    if shared.exists():
        step = _Step(name, f"{shared.name} is {fault}: removing")
        shutil.rmtree(shared)
        step.done()
    shared.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(shared.parent).free / 1e9
    if free < DISK_GB[name]:
        raise SetupError(
            f"the {name} environment needs {DISK_GB[name]} GB in {shared.parent}, {free:.1f} are free. "
            "`make prune` removes environments of other lock files; "
            "KVFLOW_ENV_DIR chooses another folder"
        )
    size = SIZES[name]
    step = _Step(name, f"installing {len(lines)} packages once ({size})")
    pip_pin = next(line for line in lines if line.startswith("pip=="))
    seed = shared / "seed"
    python = _seed(seed, pip_pin)
    _run([sys.executable, "-m", "venv", "--without-pip", shared])
    # Into an environment without the seed's pip, so that it holds the lock file's
    # packages and not one more. Nothing is resolved: the lock file is complete.
    command: list[Arg] = ["--python", shared / "bin" / "python", "install"]
    command += ["--no-deps", "-r", lock_path(name)]
    log = shared / "pip.log"
    _pip(python, command, log, step, _site(shared))
    shutil.rmtree(seed)
    (shared / MARKER).write_text("\n".join(lines) + "\n")
    if fault_left := _fault(shared, lines):
        (shared / MARKER).unlink()
        raise SetupError(f"{shared} is {fault_left}; see {log}")
    step.done()


def _make_thin(name: str, thin: Path, shared: Path) -> None:
    stamp = thin / STAMP
    place = f"{shared}\n{ROOT}\n{platform.python_version()}\n"
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    found = stamp.read_text() if stamp.exists() else ""
    check = "import pip, importlib.metadata as m; m.distribution('kvflow')"
    works = found.startswith(place) and _runs(thin, check)
    if works and found == place + project:
        return
    step = _Step(name, "installing this checkout")
    if works:
        # Only the project changed: what runs from here meanwhile keeps its Python.
        stamp.unlink()
    else:
        shutil.rmtree(thin, ignore_errors=True)
        _run([sys.executable, "-m", "venv", "--without-pip", thin])
        link = f"import site; site.addsitedir({str(_site(shared))!r})\n"
        (_site(thin) / "_kvflow_shared.pth").write_text(link)
    command: list[Arg] = ["install", "--no-deps", "--no-build-isolation", "--no-index"]
    _pip(thin / "bin" / "python", [*command, "-e", ROOT], thin / "pip.log", step)
    stamp.write_text(place + project)
    step.done()


def _seed(path: Path, pip_pin: str | None) -> Path:
    """The Python of a fresh environment with a current (or this) pip in it."""
    _run([sys.executable, "-m", "venv", path])
    python = path / "bin" / "python"
    _run([python, "-m", "pip", "install", "--quiet", "--upgrade", pip_pin or "pip"])
    return python


def _pip(
    python: Path,
    args: Sequence[Arg],
    log: Path,
    step: _Step,
    site: Path | None = None,
) -> None:
    """Run pip with its output in `log`, and show how far it is."""
    command: list[Arg] = [python, "-m", "pip", "--no-input", *args]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=_environment()
        )
        try:
            while process.poll() is None:
                step.tick(_progress(log, site))
                time.sleep(0.5)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise SetupError(f"pip ended with {process.returncode}:\n{tail}\n(all: {log})")


def _progress(log: Path, site: Path | None) -> str:
    if site is None:
        return ""
    if installed := len(list(site.glob("*.dist-info"))):
        return f"{installed} installed"
    return f"{log.read_bytes().count(b'Collecting ')} fetched"


def _run(command: Sequence[Arg]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    if done.returncode:
        words = " ".join(map(str, command))
        output = (done.stdout + done.stderr).strip()
        raise SetupError(f"`{words}` ended with {done.returncode}:\n{output}")


def _runs(env: Path, code: str) -> bool:
    command: list[Arg] = [env / "bin" / "python", "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, env=_environment())
    except OSError:
        return False
    return done.returncode == 0


def _environment() -> dict[str, str]:
    """The caller's environment without what would lead pip or Python elsewhere."""
    astray = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"}
    kept = {key: value for key, value in os.environ.items() if key not in astray}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _site(env: Path) -> Path:
    return env / "lib" / f"python{PYTHON[0]}.{PYTHON[1]}" / "site-packages"


def _canonical(name: str, version: str) -> str:
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold `path` against other set-ups; the system frees it if we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            step = _Step(path.stem, "waiting for another set-up")
            fcntl.flock(file, fcntl.LOCK_EX)
            step.done()
        yield


class _Step:
    """One phase on stderr: what, how far, how long."""

    def __init__(self, name: str, what: str) -> None:
        self._start = time.monotonic()
        self._label = f"{name}: {what}"
        self._shown = self._start
        self._tty = sys.stderr.isatty()
        print(f"{self._label} ...", file=sys.stderr, flush=True)

    def tick(self, progress: str) -> None:
        """Say how far it is: often on a terminal, every 30 s in a log."""
        now = time.monotonic()
        if now - self._shown < (0.5 if self._tty else 30):
            return
        self._shown = now
        text = f"  {now - self._start:.0f} s {progress}"
        end = "\r" if self._tty else "\n"
        print(text.ljust(40), end=end, file=sys.stderr, flush=True)

    def done(self, note: str = "") -> None:
        took = time.monotonic() - self._start
        note = f", {note}" if note else ""
        print(f"{self._label}: done in {took:.0f} s{note}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
