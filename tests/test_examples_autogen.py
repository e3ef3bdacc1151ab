"""The AutoGen examples, run as programs against a server that plays the model."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest

from kvflow_integrations.conformance import Loopback, Seen
from kvflow_sdk.wire import StepUpdate

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# The stand-in does not echo the name of the model, which SGLang does.
pytestmark = pytest.mark.filterwarnings("ignore:Resolved model mismatch")


class _Model(Loopback):
    """Answers whom it knows by the name in its prompt with a list of texts."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.calls: list[StepUpdate] = []
        super().__init__()

    def complete(self, request: Seen) -> tuple[int, str]:
        (update,) = request.updates
        self.calls.append(update)
        texts = self.answers.get(update.agent or "", [])
        return 200, texts.pop(0) if texts else "a note"

    @property
    def order(self) -> list[str | None]:
        return [update.agent for update in self.calls]


def run(name: str, monkeypatch: pytest.MonkeyPatch, model: _Model) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module: Any = importlib.import_module(name)
    asyncio.run(module.main(model.url, "Is gold a hedge?"))


def test_graphflow_loops_until_the_review_accepts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with _Model(reviewer=["REVISE: add the year", "ACCEPT"]) as model:
        run("autogen_graphflow", monkeypatch, model)
    notes = {"economist", "analyst"}
    assert model.order[0] == "planner"
    assert set(model.order[1:3]) == notes
    assert model.order[3:] == ["writer", "reviewer"] * 2 + ["editor"]
    assert model.calls[0].steps == {
        **dict.fromkeys(notes, 1),
        "planner": 0,
        "writer": 2,
        "reviewer": 3,
        "editor": 4,
    }
    # The loop enters the writer alone: the notes are not waited for again.
    assert model.calls[5].steps == {"writer": 0, "reviewer": 1, "editor": 2}
    assert "reviewer: ACCEPT" in capsys.readouterr().out


def test_the_selector_is_an_agent_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["analyst", "economist", "writer", "editor"]
    with _Model(desk=list(chosen)) as model:
        run("autogen_selector", monkeypatch, model)
    assert model.order == [name for c in chosen for name in ("desk", f"desk|{c}")]
    others = {f"desk|{name}": 1 for name in chosen}
    assert model.calls[0].steps == {"desk": 0, **others}
    assert capsys.readouterr().out.count("a note") == 4


@pytest.mark.parametrize("name", ["autogen_graphflow", "autogen_selector"])
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60
