"""The real server of the other integrations' tests, for frameworks apart from them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

_PATH = Path(__file__).resolve().parent.parent / "integrations" / "conftest.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kvflow_integrations_conftest", _PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kvflow_url = _load().kvflow_url
