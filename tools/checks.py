"""Runs the checks one after another, all of them, and sums up. Standard library only.

    python3.11 tools/checks.py lint client openai-2 server

lint      ruff (rules and format) and mypy, in the client environment
client    every test but tests/server, in the client environment (openai 3)
openai-2  the SDK's OpenAI tests again in the server environment (openai 2.8)
server    tests/server, in the server environment
full      the tests marked `full`: every server configuration, the long traces
legacy    frameworks that have an environment of their own: tests/legacy

The last line is ``tests: N passed, N failed, N skipped``; the exit status is 0 when
every check passed and every suite ran at least one test.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test-reports"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What one command came to."""

    name: str
    code: int
    """Its exit status; -11 is a crash, even where every test passed."""
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0


def main(groups: Sequence[str]) -> int:
    known = {
        "lint": lint,
        "client": client,
        "openai-2": openai_2,
        "server": server,
        "full": full,
        "legacy": legacy,
    }
    if unknown := [group for group in groups if group not in known]:
        print(f"no such check: {unknown}, there are {list(known)}", file=sys.stderr)
        return 2
    outcomes = [outcome for group in groups for outcome in known[group]()]
    _sum_up(outcomes)
    return 1 if any(outcome.code for outcome in outcomes) else 0


def lint() -> Iterator[Outcome]:
    yield _command("ruff check", _python("client"), "-m", "ruff", "check", ".")
    yield _command(
        "ruff format", _python("client"), "-m", "ruff", "format", "--check", "."
    )
    yield _command("mypy --strict", _python("client"), "-m", "mypy")


def client() -> Iterator[Outcome]:
    elsewhere = ("--ignore=tests/server", "--ignore=tests/legacy")
    # One process per core; tests/conftest.py says what stays together.
    workers = ("--numprocesses", "logical", "--dist", "loadscope")
    yield _pytest("client", "client", "tests", *elsewhere, *workers)


def openai_2() -> Iterator[Outcome]:
    # The one part whose behaviour could differ between the two openai majors.
    files = sorted((ROOT / "tests" / "sdk").glob("test_*openai*.py"))
    paths = [str(file.relative_to(ROOT)) for file in files]
    yield _pytest("openai-2", "server", *(paths or ["tests/sdk"]))


def server() -> Iterator[Outcome]:
    yield _pytest("server", "server", "tests/server")


def full() -> Iterator[Outcome]:
    yield _pytest("full", "server", "-m", "full", "tests/server")


def legacy() -> Iterator[Outcome]:
    for folder in sorted((ROOT / "tests" / "legacy").iterdir()):
        if folder.is_dir() and not folder.name.startswith("_"):
            # Old packages warn about new ones, and their clients are not closed.
            path = str(folder.relative_to(ROOT))
            yield _pytest(folder.name, folder.name, path, "-W", "ignore")


def _python(env: str) -> str:
    return str(ROOT / ".venv" / env / "bin" / "python")


def _command(name: str, *command: str) -> Outcome:
    print(f"\n--- {name}", flush=True)
    start = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode
    return Outcome(name, code, time.monotonic() - start)


def _pytest(name: str, env: str, *args: str) -> Outcome:
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    done = _command(
        f"{name} tests", _python(env), "-m", "pytest", *args, f"--junitxml={report}"
    )
    if not report.exists():
        return dataclasses.replace(done, code=done.code or 5)
    suites = ElementTree.parse(report).getroot().findall("testsuite")

    def count(key: str) -> int:
        return sum(int(suite.get(key, 0)) for suite in suites)

    failed, skipped = count("failures") + count("errors"), count("skipped")
    passed = count("tests") - failed - skipped
    return dataclasses.replace(done, passed=passed, failed=failed, skipped=skipped)


def _sum_up(outcomes: Sequence[Outcome]) -> None:
    print("\n--- summary")
    for o in outcomes:
        verdict = "FAILED" if o.code else "ok"
        counts = f"{o.passed} passed, {o.failed} failed, {o.skipped} skipped"
        detail = [counts] if o.passed + o.failed + o.skipped else []
        if o.code and not o.failed:
            detail.append(f"exit status {o.code}")
        line = f"{verdict:8}{o.name:15}{o.seconds:6.0f} s  {'; '.join(detail)}"
        print(line.rstrip())
    if any(o.passed + o.failed + o.skipped for o in outcomes):
        total = [sum(getattr(o, k) for o in outcomes) for k in COUNTS]
        print("tests: {} passed, {} failed, {} skipped".format(*total), flush=True)


COUNTS = ("passed", "failed", "skipped")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
