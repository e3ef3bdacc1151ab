"""With an admin key the state is the admin's, who may see the clients' ids."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from kvflow_sdk import wire
from kvflow_sdk.wire import StepUpdate
from kvflow_server.edge.launcher import ServerProcess
from kvflow_server.emulated.tiny import TinyDims, tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.full]

DIMS = TinyDims(
    hidden=64, layers=2, heads=4, kv_heads=4, intermediate=128, vocab=512, context=512
)
USER, ADMIN = "key-of-users", "key-of-the-admin"
CAPS = {"KVFLOW_MAX_CLIENTS": "2", "KVFLOW_LEASE_S": "20"}


def test_keys_ids_caps_and_leases_on_a_server_of_its_own(tmp_path: Path) -> None:
    flags = [
        *("--emulated", "--model-path", str(tiny_model(DIMS))),
        *("--max-total-tokens", "1000", "--api-key", USER, "--admin-api-key", ADMIN),
    ]
    with ServerProcess(flags, env=CAPS, log_path=tmp_path / "log") as server:
        http = httpx.Client(base_url=server.url, timeout=120, trust_env=False)

        def send(client: str) -> httpx.Response:
            update = StepUpdate(client=client, run="r", seq=1, steps={"planner": 0})
            return http.post(
                wire.STEPS_PATH, json=wire.to_envelope([update]), headers=_key(USER)
            )

        def state(key: str | None, **question: str) -> httpx.Response:
            return http.get(wire.STATE_PATH, params=question, headers=_key(key))

        assert [send(client).status_code for client in ("one", "two")] == [202, 202]
        assert [state(key).status_code for key in (None, USER)] == [401, 401]
        assert set(state(ADMIN).json()["clients"]) == {
            wire.shown_client("one"),
            wire.shown_client("two"),
        }
        assert set(state(ADMIN, ids="full").json()["clients"]) == {"one", "two"}
        refused = send("three")
        assert refused.status_code == 429
        assert "2 clients" in refused.json()["error"]["message"]
        # Their leases end without a word from anybody; the test's limit is the bound.
        while state(ADMIN).json()["sizes"]["clients"]:
            time.sleep(0.5)
        assert send("three").status_code == 202
        assert state(ADMIN).json()["sizes"]["clients"] == 1
        http.close()


def _key(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}
