"""Who needs which key, by SGLang's own middleware on KVFlow's own routes.

No SGLang serves in this process, so who is let in gets no further than an error.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvflow_sdk.wire import STATE_PATH, STEPS_PATH

# SGLang's modules warn of missing hardware, and its answers of their own class.
pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]

USER, ADMIN = "key-of-users", "key-of-the-admin"
LET_IN, KEPT_OUT = True, False


def lets_in(path: str, method: str, key: str | None, **keys: str | None) -> bool:
    from sglang.srt.platforms import current_platform  # noqa: F401  # isort: skip
    from fastapi import FastAPI
    from fastapi.testclient import TestClient
    from sglang.srt.utils.auth import add_api_key_middleware

    from kvflow_server.edge.routes import add_routes

    app: Any = FastAPI()
    add_routes(app)
    add_api_key_middleware(app, **{"api_key": None, "admin_api_key": None, **keys})
    headers = {"authorization": f"Bearer {key}"} if key else {}
    client = TestClient(app, raise_server_exceptions=False)
    status = client.request(method, path, headers=headers).status_code
    assert status in (401, 404, 500)
    return bool(status != 401)


@pytest.mark.parametrize(
    ("key", "expected"), [(None, KEPT_OUT), (USER, KEPT_OUT), (ADMIN, LET_IN)]
)
def test_with_an_admin_key_the_state_is_the_admins(
    key: str | None, expected: bool
) -> None:
    keys = {"api_key": USER, "admin_api_key": ADMIN}
    assert lets_in(STATE_PATH, "GET", key, **keys) is expected


@pytest.mark.parametrize(("key", "expected"), [(None, KEPT_OUT), (ADMIN, LET_IN)])
def test_an_admin_key_alone_protects_the_state(key: str | None, expected: bool) -> None:
    assert lets_in(STATE_PATH, "GET", key, admin_api_key=ADMIN) is expected


@pytest.mark.parametrize(("key", "expected"), [(None, KEPT_OUT), (USER, LET_IN)])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", STATE_PATH), ("POST", STEPS_PATH)]
)
def test_with_one_key_every_route_needs_it(
    method: str, path: str, key: str | None, expected: bool
) -> None:
    assert lets_in(path, method, key, api_key=USER) is expected


def test_steps_are_the_users_where_there_is_an_admin_key_too() -> None:
    keys = {"api_key": USER, "admin_api_key": ADMIN}
    assert lets_in(STEPS_PATH, "POST", USER, **keys) is LET_IN
