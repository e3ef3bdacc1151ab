"""What is shipped: the wheel, its contents, and how little it needs."""

from __future__ import annotations

import configparser
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = {"kvflow_sdk", "kvflow_integrations", "kvflow_server"}
HEAVY = ("torch", "sglang", "transformers", "numpy", "matplotlib", "fastapi")
FRAMEWORKS = ("langgraph", "langchain_core", "langchain_openai", "openai", "autogen")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as a release is, but from what is installed here."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    done = subprocess.run(
        [*command, "--outdir", folder, ROOT], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A `sys.path` of the wheel and its declared dependencies, nothing else."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    linked = tmp_path_factory.mktemp("linked")
    for name in _closure(PROJECT["dependencies"]):
        _link(importlib.metadata.distribution(name), linked)
    return [site, linked]


def test_the_wheel_has_exactly_the_three_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == PACKAGES | {f"kvflow-{PROJECT['version']}.dist-info"}


def test_the_wheel_has_every_module_of_the_checkout(wheel: Path) -> None:
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if _is_code(name)}
    sources = [ROOT, ROOT / "server", ROOT / "integrations"]
    there = {
        path.relative_to(root).as_posix()
        for root in sources
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
    }
    assert shipped == there


def test_every_package_is_typed(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_licence_is_shipped(wheel: Path) -> None:
    info = f"kvflow-{PROJECT['version']}.dist-info"
    shipped = zipfile.ZipFile(wheel).read(f"{info}/licenses/LICENSE")
    assert shipped == (ROOT / "LICENSE").read_bytes()


def test_the_entry_points_are_shipped_and_name_shipped_modules(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = f"kvflow-{PROJECT['version']}.dist-info"
    entries = configparser.ConfigParser(delimiters=["="])
    entries.read_string(archive.read(f"{info}/entry_points.txt").decode())
    groups = {"console_scripts", "sglang.srt.plugins", "sglang.srt.platforms"}
    assert set(entries.sections()) == groups
    targets = [value for group in groups for value in entries[group].values()]
    modules = {target.partition(":")[0].replace(".", "/") + ".py" for target in targets}
    assert modules <= set(archive.namelist())


@pytest.mark.parametrize(
    "module",
    [
        "kvflow_sdk",
        "kvflow_sdk.wire",
        "kvflow_sdk.graph",
        "kvflow_sdk.stream",
        "kvflow_integrations",
        "kvflow_server",
        "kvflow_server.plugin",
        "kvflow_server.emulated.platform",
        "kvflow_server.policy.steps",
    ],
)
def test_it_imports_with_its_declared_dependencies_alone(
    alone: list[Path], module: str
) -> None:
    code = f"""
        import importlib, importlib.util, json
        absent = {(*HEAVY, *FRAMEWORKS)!r}
        there = [name for name in absent if importlib.util.find_spec(name)]
        print(json.dumps([importlib.import_module({module!r}).__file__, there]))
    """
    file, there = json.loads(_bare_python(code, alone))
    assert there == []
    assert Path(file).is_relative_to(alone[0])


@pytest.mark.parametrize("module", ["kvflow_sdk", "kvflow_server.plugin"])
def test_importing_it_loads_nothing_heavy_even_where_that_is_installed(
    module: str,
) -> None:
    code = f"import {module}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {*HEAVY, *FRAMEWORKS} & set(done.stdout.split()) == set()


def test_this_environment_sees_each_entry_point_once() -> None:
    for group in ("sglang.srt.plugins", "sglang.srt.platforms"):
        found = importlib.metadata.entry_points(group=group)
        assert [e.name for e in found if e.value.startswith("kvflow_server")] == list(
            PROJECT["entry-points"][group]
        )


def test_this_environment_runs_the_code_of_this_checkout() -> None:
    code = "import kvflow_sdk, kvflow_server, kvflow_integrations as i\n"
    code += "print(kvflow_sdk.__file__, kvflow_server.__file__, i.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [
        str(ROOT / folder / "__init__.py")
        for folder in (
            "kvflow_sdk",
            "server/kvflow_server",
            "integrations/kvflow_integrations",
        )
    ]


@pytest.mark.parametrize(
    ("env", "extras"),
    [
        ("client", ["openai", "langgraph", "cli"]),
        ("server", ["openai", "server", "cli", "emulated"]),
    ],
)
def test_the_lock_file_satisfies_the_declared_ranges(
    env: str, extras: list[str]
) -> None:
    pins = _pins(env)
    optional = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(r for e in extras for r in optional[e])]
    for requirement in map(Requirement, wanted):
        version = pins[_canonical(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: {version}"


@pytest.mark.parametrize("env", ["client", "server"])
def test_the_lock_file_is_exact_and_names_no_place(env: str) -> None:
    for line in _lock_lines(env):
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line), line


def test_this_environment_is_what_the_client_lock_file_says() -> None:
    installed = {
        _canonical(dist.name): dist.version
        for dist in importlib.metadata.distributions()
    }
    installed.pop("kvflow")
    assert installed == _pins("client")


def test_the_changelog_knows_the_version_or_has_unreleased_entries() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{PROJECT['version']}]" in text or "## [Unreleased]" in text


def _bare_python(code: str, path: list[Path]) -> str:
    """What `code` prints in an interpreter without site-packages (-S) but `path`."""
    lines = [f"import sys; sys.path += {[str(entry) for entry in path]!r}"]
    lines += [line.strip() for line in code.strip().splitlines()]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _closure(requirements: list[str]) -> set[str]:
    """The distributions that `requirements` need, with theirs."""
    seen: set[str] = set()
    todo = list(requirements)
    while todo:
        requirement = Requirement(todo.pop())
        marker, name = requirement.marker, _canonical(requirement.name)
        if name in seen or (marker and not marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        todo += importlib.metadata.requires(name) or []
    return seen


def _link(dist: importlib.metadata.Distribution, folder: Path) -> None:
    """Make the top-level names of `dist`, and of nothing else, appear in `folder`."""
    for name in {file.parts[0] for file in dist.files or []} - {"..", "__pycache__"}:
        target = folder / name
        if not target.exists():
            target.symlink_to(Path(str(dist.locate_file(name))))


def _is_code(name: str) -> bool:
    return name.endswith(".py")


def _lock_lines(env: str) -> list[str]:
    lines = (ROOT / "requirements" / f"{env}.lock").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _pins(env: str) -> dict[str, str]:
    pairs = [line.split("==") for line in _lock_lines(env)]
    return {_canonical(name): version for name, version in pairs}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
