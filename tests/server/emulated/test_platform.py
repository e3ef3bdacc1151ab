"""The platform is inert unless it is chosen."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvflow_server.emulated.platform import PLATFORM_NAME, activate


@pytest.mark.parametrize("chosen", [None, "", "some_other_platform"])
def test_the_platform_is_inert_unless_chosen(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    if chosen is None:
        monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    else:
        monkeypatch.setenv("SGLANG_PLATFORM", chosen)
    assert activate() is None


def test_the_chosen_platform_names_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLATFORM", PLATFORM_NAME)
    assert activate() == "kvflow_server.emulated.accelerator.EmulatedPlatform"


def test_asking_the_platform_imports_neither_torch_nor_sglang() -> None:
    script = (
        "import sys, kvflow_server.emulated.platform as p; p.activate(); "
        "sys.exit(bool({'torch', 'sglang'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
