"""The admission table of DESIGN.md, row by row, and what must hold of all rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow_server.policy.admission import PathStatus, Verdict, decide

IN_GPU = PathStatus(loading=0, backed_up=0)
LOADING = PathStatus(loading=64, backed_up=0)
BACKED_UP = PathStatus(loading=0, backed_up=64)
BOTH = PathStatus(loading=64, backed_up=64)


@pytest.mark.parametrize(
    ("path", "other_ready", "room", "skips", "verdict"),
    [
        (IN_GPU, True, True, 0, Verdict.ADMIT),
        (IN_GPU, False, False, 9, Verdict.ADMIT),
        (LOADING, True, True, 0, Verdict.SKIP),
        (LOADING, False, True, 0, Verdict.JOIN),
        (BACKED_UP, True, True, 0, Verdict.LOAD_AND_SKIP),
        (BACKED_UP, False, True, 0, Verdict.ADMIT),
        (BACKED_UP, True, False, 0, Verdict.RECOMPUTE),
        (BACKED_UP, False, False, 0, Verdict.RECOMPUTE),
        (BOTH, True, True, 0, Verdict.LOAD_AND_SKIP),
        (BOTH, True, False, 0, Verdict.SKIP),
        (BOTH, False, True, 0, Verdict.JOIN),
        (LOADING, True, True, 4, Verdict.JOIN),
        (BACKED_UP, True, True, 4, Verdict.RECOMPUTE),
        (BOTH, True, True, 4, Verdict.JOIN_AND_RECOMPUTE),
    ],
)
def test_each_row_of_the_table(
    path: PathStatus, other_ready: bool, room: bool, skips: int, verdict: Verdict
) -> None:
    assert decide(path, other_ready=other_ready, room=room, skips=skips, limit=4) is (
        verdict
    )


@pytest.mark.parametrize(
    ("path", "other_ready", "room", "skips", "verdict"),
    [
        (BACKED_UP, False, True, 0, Verdict.RECOMPUTE),
        (BOTH, False, True, 0, Verdict.JOIN_AND_RECOMPUTE),
        (LOADING, False, True, 0, Verdict.JOIN),
        (BACKED_UP, True, True, 0, Verdict.LOAD_AND_SKIP),
        (BOTH, True, True, 0, Verdict.LOAD_AND_SKIP),
        (IN_GPU, False, True, 0, Verdict.ADMIT),
    ],
)
def test_where_computing_is_quicker_a_request_does_not_wait_for_a_copy(
    path: PathStatus, other_ready: bool, room: bool, skips: int, verdict: Verdict
) -> None:
    found = decide(
        path,
        other_ready=other_ready,
        room=room,
        skips=skips,
        limit=4,
        computing_is_quicker=True,
    )
    assert found is verdict


@pytest.mark.parametrize(
    ("path", "room", "verdict"),
    [
        (IN_GPU, True, Verdict.ADMIT),
        (LOADING, True, Verdict.JOIN),
        (LOADING, False, Verdict.JOIN),
        (BACKED_UP, True, Verdict.ADMIT),
        (BACKED_UP, False, Verdict.RECOMPUTE),
        (BOTH, True, Verdict.JOIN),
        (BOTH, False, Verdict.SKIP),
    ],
)
def test_a_copy_that_computing_hides_is_no_reason_to_pass_over(
    path: PathStatus, room: bool, verdict: Verdict
) -> None:
    found = decide(
        path, other_ready=True, room=room, skips=0, limit=4, copy_is_hidden=True
    )
    assert found is verdict


_PATHS = st.builds(PathStatus, loading=st.integers(0, 9), backed_up=st.integers(0, 9))
_SKIPPING = (Verdict.SKIP, Verdict.LOAD_AND_SKIP)
_JOINING = (Verdict.JOIN, Verdict.JOIN_AND_RECOMPUTE)


@given(_PATHS, st.booleans(), st.booleans(), st.integers(0, 9), st.booleans())
def test_nothing_starves_and_nothing_reads_early(
    path: PathStatus, other_ready: bool, room: bool, skips: int, quicker: bool
) -> None:
    verdict = decide(
        path,
        other_ready=other_ready,
        room=room,
        skips=skips,
        limit=5,
        computing_is_quicker=quicker,
    )
    if skips >= 5 or not other_ready:
        assert verdict not in _SKIPPING, "skipped with nothing else to run, or for ever"
    if path.loading:
        assert verdict in (*_SKIPPING, *_JOINING), "admitted without waiting for a copy"
    if verdict is Verdict.LOAD_AND_SKIP:
        assert path.backed_up, "a copy of nothing"
        assert room, "a copy without a place for it"
