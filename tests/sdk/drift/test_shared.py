"""Text that agents share and a prefix cache does not find."""

from __future__ import annotations

from kvflow_sdk.drift import RecordedRequest, analyse
from kvflow_sdk.drift.shared import SharedText, shared_texts

PREAMBLE = (
    "You work for Example Corporation, which trades in metals on four continents. " * 4
)
RULES = "Answer in complete sentences, name every source, and never give advice. " * 3


def found(**prompts: str) -> list[SharedText]:
    return shared_texts(prompts, len)


def test_a_preamble_behind_a_line_of_each_agent_s_own_is_found() -> None:
    (text,) = found(
        planner=f"You plan.\n{PREAMBLE}\nPlan now.",
        writer=f"You write well.\n{PREAMBLE}\nWrite now.",
        other="Something else entirely.",
    )
    assert text.agents == ("planner", "writer")
    assert text.tokens == len(PREAMBLE.strip())
    assert PREAMBLE.startswith(text.beginning)


def test_what_stands_first_in_both_is_shared_already() -> None:
    assert found(planner=f"{PREAMBLE}\nPlan.", writer=f"{PREAMBLE}\nWrite.") == []


def test_the_same_lines_in_another_order_are_found() -> None:
    (text,) = found(a=f"{PREAMBLE}\n{RULES}\nA.", b=f"{RULES}\n{PREAMBLE}\nB.")
    assert text.tokens == len(PREAMBLE.strip()) + len(RULES.strip())


def test_short_lines_are_phrases_and_no_shared_text() -> None:
    assert found(a="You plan.\nBe brief.\n" * 9, b="You write.\nBe brief.\n" * 9) == []


def test_the_report_names_who_shares_what() -> None:
    requests = [
        RecordedRequest({"prompt": f"You {what}.\n{PREAMBLE}\nGo."}, agent=what)
        for what in ("plan", "write")
    ]
    (text,) = analyse(requests).shared
    assert text.agents == ("plan", "write")
