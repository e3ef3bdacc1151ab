"""Runs the LangGraph tests with other versions than the locked ones. Stdlib only.

    python3.11 tools/versions.py [oldest-3.11] [newest-3.12] [newest-3.13]

Each has an environment of its own in ``.venv/``, made once and again when what it is
made from changes. A Python that is not on this machine (neither on the PATH nor among
pyenv's) is skipped, and said to be. The last line is as that of tools/checks.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNNER = ("pytest>=9", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis")
BUILD = ("hatchling", "editables")
CLI = ("typer>=0.15", "rich>=13.9")
TESTS = ("tests/sdk", "tests/integrations/langgraph", "tests/integrations/plain")
STAMP = "kvflow-versions"


@dataclasses.dataclass(frozen=True, slots=True)
class Combination:
    """One Python and what is installed into it."""

    name: str
    python: str
    requirements: str
    """A file of requirements/."""

    @property
    def env(self) -> Path:
        return ROOT / ".venv" / self.name


COMBINATIONS = (
    Combination("oldest-3.11", "3.11", "langgraph-oldest.txt"),
    Combination("newest-3.12", "3.12", "langgraph-newest.txt"),
    Combination("newest-3.13", "3.13", "langgraph-newest.txt"),
)


def main(names: Sequence[str]) -> int:
    known = {combination.name: combination for combination in COMBINATIONS}
    if unknown := [name for name in names if name not in known]:
        print(f"no such combination: {unknown}, there are {list(known)}")
        return 2
    lines, totals, failed = [], [0, 0, 0], False
    for combination in [known[name] for name in names] or COMBINATIONS:
        found = python_of(combination.python)
        if found is None:
            lines.append(f"{combination.name}: no Python {combination.python} here")
            continue
        start = time.monotonic()
        make(combination, found)
        code, counts = test(combination)
        failed = failed or code != 0
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        verdict = "FAILED" if code else "ok"
        took = time.monotonic() - start
        lines.append(f"{combination.name}: {verdict}, {counts[0]} passed, {took:.0f} s")
    print("\n--- summary", *lines, sep="\n")
    print("tests: {} passed, {} failed, {} skipped".format(*totals), flush=True)
    return 1 if failed or not totals[0] else 0


def python_of(version: str) -> Path | None:
    """An interpreter of `version`, if this machine has one that runs."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    named = shutil.which(f"python{version}")
    for path in [*([Path(named)] if named else []), *reversed(pyenv)]:
        code = "import sys; print(*sys.version_info[:2], sep='.')"
        said = subprocess.run([path, "-c", code], capture_output=True, text=True)
        if said.returncode == 0 and said.stdout.strip() == version:
            return path
    return None


def make(combination: Combination, python: Path) -> None:
    """Make the environment, unless it is there and from the same files."""
    env = combination.env
    files = (ROOT / "requirements" / combination.requirements, ROOT / "pyproject.toml")
    tools = (*RUNNER, *BUILD, *CLI)
    texts = [f"{ROOT} {tools}".encode(), *(file.read_bytes() for file in files)]
    wanted = hashlib.sha256(b"\0".join(texts)).hexdigest()
    stamp = env / STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"{combination.name}: installing (a minute or two) ...", flush=True)
    shutil.rmtree(env, ignore_errors=True)
    subprocess.run([python, "-m", "venv", env], check=True)
    pip = [str(env / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    packages = ["-r", str(files[0]), *tools]
    subprocess.run([*pip, *packages], check=True)
    own = ["--no-build-isolation", "--editable", f"{ROOT}[langgraph]"]
    subprocess.run([*pip, *own], check=True)
    stamp.write_text(wanted)


def test(combination: Combination) -> tuple[int, list[int]]:
    """The exit status, and how many passed, failed and were skipped."""
    print(f"\n--- {combination.name}", flush=True)
    workers = ("--numprocesses", "logical", "--dist", "loadscope")
    # What the newest of other packages warn of is not ours to keep quiet.
    options = (*workers, "-m", "not full and not server", "-W", "ignore")
    python = str(combination.env / "bin" / "python")
    command = [python, "-m", "pytest", *TESTS, *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line if re.search(r"\d+ (passed|failed|error)", line) else last
    counts = {word: int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", last)}
    broken = sum(counts.get(word, 0) for word in ("failed", "error", "errors"))
    return process.wait(), [counts.get("passed", 0), broken, counts.get("skipped", 0)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
