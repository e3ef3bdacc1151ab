"""The house rules that a program can check: who may import whom, and sizes."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "kvflow_sdk": ROOT,
    "kvflow_integrations": ROOT / "integrations",
    "kvflow_server": ROOT / "server",
}

# From the ground up. A room imports from its own floor and those below it.
FLOORS = [
    [
        "kvflow_sdk.errors",
        "kvflow_sdk.channel",
        "kvflow_sdk.config",
        "kvflow_sdk.counters",
        "kvflow_sdk.deflate",
        "kvflow_sdk.ids",
    ],
    ["kvflow_sdk.checks"],
    ["kvflow_sdk.wire"],
    ["kvflow_sdk.prompt"],
    ["kvflow_sdk.prewarm"],
    ["kvflow_sdk.drift"],
    ["kvflow_sdk.graph", "kvflow_sdk.distance"],
    ["kvflow_sdk.likelihood"],
    ["kvflow_sdk.observer"],
    ["kvflow_sdk.frontier"],
    ["kvflow_sdk.position"],
    ["kvflow_sdk.run"],
    ["kvflow_sdk.noted", "kvflow_sdk.target"],
    ["kvflow_sdk.context", "kvflow_sdk.stream"],
    ["kvflow_sdk.client", "kvflow_sdk.agent", "kvflow_sdk.openai"],
    ["kvflow_integrations.adapter"],
    ["kvflow_integrations.templates"],
    ["kvflow_integrations.calls"],
    ["kvflow_integrations.conformance", "kvflow_integrations.peer"],
    [
        "kvflow_integrations.langgraph",
        "kvflow_integrations.autogen",
        "kvflow_integrations.openai_agents",
        "kvflow_integrations.ag2",
        "kvflow_integrations.ag2_network",
        "kvflow_integrations.sglang_lang",
        "kvflow_integrations.agentuniverse",
    ],
    ["kvflow_integrations"],
    ["kvflow_sdk"],  # the front door: `kvflow.wrap` finds the integration
    ["kvflow_server.policy"],
    ["kvflow_server.emulated"],
    ["kvflow_server.engine"],
    ["kvflow_server.edge"],
    ["kvflow_server.bench", "kvflow_server.sim"],
    ["kvflow_server.report"],
    ["kvflow_server.lint"],
    ["kvflow_server.plugin"],
    ["kvflow_server.cli"],
    ["kvflow_server"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
PACKAGES = ("kvflow_integrations", "kvflow_sdk", "kvflow_server")

PURE = ("kvflow_server.policy", "kvflow_sdk.graph", "kvflow_sdk.distance")
IMPURE = {"sglang", "torch", "time", "datetime", "httpx", "threading", "asyncio"}
# What works for the client's side, or plays a client.
EXPERIMENTS = ("kvflow_server.bench", "kvflow_server.sim", "kvflow_server.lint")
SERVER_MAY_USE = {"kvflow_sdk.wire", "kvflow_sdk.prewarm", "kvflow_sdk.errors"}

# Ranks must decide alike, so they go by the time that the first of them sends.
CLOCKS = {
    "kvflow_server.engine.handlers": "reads it, on the first rank",
    "kvflow_server.engine.overhead": "measures, and steers nothing",
    "kvflow_server.engine.accounts": "measures, and steers nothing",
    "kvflow_server.engine.recording": "measures, and steers nothing",
    "kvflow_server.engine.metrics": "when to publish, which steers nothing",
    "kvflow_server.engine.boundary": "runs in the HTTP process, which has no ranks",
    "kvflow_server.engine.gate": "runs in the HTTP process, which has no ranks",
    "kvflow_server.engine.fanout": "runs in the HTTP process, which has no ranks",
}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_FUNCTION_LINES_P90 = 35
# What a fixture builds or a reference algorithm spells out may be longer.
FUNCTIONS = ["kvflow_sdk", "integrations", "server", "tools", "examples"]
FILES = [*FUNCTIONS, "tests"]


def test_a_room_imports_only_from_its_floor_and_below() -> None:
    assert _all(_upward_imports) == []


def test_policy_and_graph_know_no_clock_no_threads_and_no_engine() -> None:
    assert _all(_impure_imports) == []


def test_the_plugin_uses_nothing_of_the_sdk_but_the_wire_format() -> None:
    assert _all(_sdk_imports_of_the_server) == []


def test_the_engine_has_one_clock() -> None:
    readers = [
        name
        for name, path in _modules()
        if name.startswith("kvflow_server.engine.")
        and "time" in _imports("", path.read_text())
    ]
    assert sorted(readers) == sorted(CLOCKS)


def test_every_module_has_a_floor() -> None:
    homeless = [name for name, _ in _modules() if _room(name) in {None, *PACKAGES}]
    assert set(homeless) <= set(PACKAGES), "give it a floor in this file"


def test_an_upward_import_is_noticed() -> None:
    source = "def late():\n    from .engine import tree"
    found = _upward_imports("kvflow_server.policy", _imports("kvflow_server", source))
    assert found == ["kvflow_server.policy imports kvflow_server.engine.tree"]


def test_an_import_of_a_submodule_by_from_is_noticed() -> None:
    imports = _imports("kvflow_server.policy", "from kvflow_sdk import run")
    found = _sdk_imports_of_the_server("kvflow_server.policy.steps", imports)
    assert found == ["kvflow_server.policy.steps imports kvflow_sdk.run"]


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in _files(FILES)}
    assert _over(lengths, MAX_FILE_LINES) == []


def test_functions_are_short() -> None:
    assert _over(_function_lengths(), MAX_FUNCTION_LINES) == []


def test_nine_of_ten_functions_are_shorter_still() -> None:
    lengths = sorted(_function_lengths().values())
    assert lengths[math.ceil(len(lengths) * 0.9) - 1] <= MAX_FUNCTION_LINES_P90


def _all(check: object) -> list[str]:
    assert callable(check)
    found = []
    for name, path in _modules():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found += check(name, _imports(package, path.read_text()))
    return found


def _modules() -> Iterator[tuple[str, Path]]:
    for package, root in SOURCES.items():
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), path


def _imports(package: str, source: str) -> list[str]:
    """Everything imported, late and for type checks too; `from a import b` as a.b."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            base += [node.module] if node.module else []
            names += [".".join([*base, alias.name]) for alias in node.names]
    return names


def _room(name: str) -> str | None:
    """The longest entry of FLOORS that `name` lies in."""
    while name and name not in FLOOR:
        name = name.rpartition(".")[0]
    return name or None


def _upward_imports(name: str, imports: list[str]) -> list[str]:
    room = _room(name)
    assert room, name
    rooms = {target: _room(target) for target in imports}
    return [
        f"{name} imports {target}"
        for target, there in rooms.items()
        if there and FLOOR[there] > FLOOR[room]
    ]


def _impure_imports(name: str, imports: list[str]) -> list[str]:
    if _room(name) not in PURE:
        return []
    wrong = [target for target in imports if target.partition(".")[0] in IMPURE]
    return [f"{name} imports {target}" for target in wrong]


def _sdk_imports_of_the_server(name: str, imports: list[str]) -> list[str]:
    # The experiments play the client too, so they stand on all of the SDK.
    if not name.startswith("kvflow_server") or _room(name) in EXPERIMENTS:
        return []
    return [
        f"{name} imports {target}"
        for target in imports
        if target.partition(".")[0] in {"kvflow_sdk", "kvflow_integrations"}
        and _room(target) not in SERVER_MAY_USE
    ]


def _files(folders: list[str]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def _function_lengths() -> dict[str, int]:
    lengths = {}
    for path in _files(FUNCTIONS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                where = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                start = node.body[0].lineno if _is_command(node) else node.lineno
                lengths[where] = (node.end_lineno or start) - start + 1
    return lengths


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A typer command: its signature is the table of its options, not code."""
    decorators = [ast.unparse(entry) for entry in node.decorator_list]
    return any(".command(" in d or ".callback(" in d for d in decorators)


def _over(lengths: Mapping[Path, int] | Mapping[str, int], limit: int) -> list[str]:
    return [f"{where}: {n} lines" for where, n in lengths.items() if n > limit]
