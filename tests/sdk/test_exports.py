"""The front door: what it exports, and how little it imports."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import pytest

import kvflow_sdk as kvflow


def test_all_is_true() -> None:
    for name in kvflow.__all__:
        assert getattr(kvflow, name) is not None


def test_all_is_everything_public() -> None:
    import types

    modules = {n for n, v in vars(kvflow).items() if isinstance(v, types.ModuleType)}
    public = {n for n in vars(kvflow) if not n.startswith("_")} - modules
    imported_for_itself = {"TYPE_CHECKING", "Any", "TypeVar", "annotations"}
    lazy = {"AsyncOpenAI", "DriftWarning", "OpenAI"}
    assert (public - imported_for_itself) | lazy == set(kvflow.__all__)


def test_dir_shows_what_is_lazy() -> None:
    assert {"OpenAI", "AsyncOpenAI", "__version__"} <= set(dir(kvflow))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="OpenIA"):
        _ = kvflow.OpenIA


def test_version_is_that_of_the_distribution() -> None:
    try:
        expected = metadata.version("kvflow")
    except metadata.PackageNotFoundError:
        pytest.skip("kvflow is not installed here")
    assert kvflow.__version__ == expected
    assert re.match(r"\d+\.\d+", expected)


def test_import_loads_no_framework_and_no_http_library() -> None:
    heavy = ("openai", "httpx", "httpx2", "langgraph", "langchain_core", "asyncio")
    program = (
        "import sys, kvflow_sdk\n"
        f"found = [name for name in {heavy} if name in sys.modules]\n"
        "sys.exit(f'imported: {found}' if found else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_agents_work_where_openai_is_not_installed() -> None:
    program = (
        "import sys\n"
        "sys.modules['openai'] = None\n"
        "import kvflow_sdk as kvflow\n"
        "with kvflow.workflow(), kvflow.step('planner') as call:\n"
        "    assert call.agent == 'planner'\n"
        "try:\n"
        "    kvflow.OpenAI\n"
        "except ImportError:\n"
        "    sys.exit(0)\n"
        "sys.exit('no ImportError')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("thing", [object(), print, "graph", {}])
def test_wrap_says_what_it_takes(thing: object) -> None:
    with pytest.raises(kvflow.UnsupportedError, match=r"graph\.compile\(\)") as caught:
        kvflow.wrap(thing)
    assert type(thing).__qualname__ in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_wrap_imports_no_framework_to_refuse() -> None:
    program = (
        "import sys, kvflow_sdk as kvflow\n"
        "try:\n"
        "    kvflow.wrap(object())\n"
        "except kvflow.UnsupportedError:\n"
        "    sys.exit('langgraph' in sys.modules)\n"
        "sys.exit('not refused')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
