"""KVFlow's HTTP routes, on SGLang's own app.

=======================================  ==========================================
``GET  /kvflow/v1/capabilities``         what this server speaks; the SDK's probe
``POST /kvflow/v1/steps``                step updates out of band; 202 and no answer
``POST /kvflow/v1/prewarm``              a prompt to compute ahead, if that is on
``GET  /kvflow/v1/state``                clients, agents, prompts, counters
``GET  /kvflow/v1/drift``                agents whose prompts part too early
=======================================  ==========================================

With ``--api-key`` the steps need the key; state and drift need the key of
``--admin-api-key`` where there is one. Nothing waits for a scheduler but those two.
"""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from kvflow_sdk.errors import WireError
from kvflow_sdk.prewarm import MAX_PREWARM_BYTES, PREWARM_PATH, parse_prewarm
from kvflow_sdk.wire import (
    CAPABILITIES_PATH,
    DRIFT_PATH,
    MAX_INFLATED_BYTES,
    STATE_PATH,
    STEPS_PATH,
    capabilities,
    parse_envelope,
)
from kvflow_server.engine.access import has_admin_key, is_active
from kvflow_server.engine.gate import dropped, intake, prewarms, refuse, refused
from kvflow_server.engine.state import DEFAULT_CLIENTS, MAX_CLIENTS
from kvflow_server.policy.intake import Admission

__all__ = ["add_routes"]

_STATE_TIMEOUT_S = 30.0
_BODY_TIMEOUT_S = 30.0


def add_routes(app: FastAPI) -> None:
    """Add the routes to SGLang's app; they fall under its API keys like its own, but
    for the capabilities (`engine.access`)."""
    from sglang.srt.utils.auth import AuthLevel, auth_level

    # On the app itself: SGLang finds the level of a route only there, and takes that
    # of an included router's for the lowest.
    state = auth_level(AuthLevel.ADMIN_OPTIONAL)(_state)
    app.add_api_route(CAPABILITIES_PATH, _capabilities, methods=["GET"])
    app.add_api_route(STEPS_PATH, _steps, methods=["POST"])
    app.add_api_route(PREWARM_PATH, _prewarm, methods=["POST"])
    app.add_api_route(STATE_PATH, state, methods=["GET"])
    drift = auth_level(AuthLevel.ADMIN_OPTIONAL)(_drift)
    app.add_api_route(DRIFT_PATH, drift, methods=["GET"])


async def _capabilities() -> JSONResponse:
    if not is_active():
        return _not_active()
    try:
        release = version("kvflow")
    except PackageNotFoundError:
        release = "unknown"
    return JSONResponse({**capabilities(), "version": release, "prewarm": prewarms()})


async def _steps(request: Request) -> Response:
    from kvflow_server.engine.messages import KVFlowStepsReq

    if not is_active():
        return _not_active()
    try:
        body = await _body(request)
        updates = parse_envelope(_decoded(body))
        if not updates:
            raise WireError("actions: holds no kvflow.step action", field="actions")
    except WireError as error:
        refuse(error.field)
        return _refusal(error)
    now = time.monotonic()
    admission = intake().admit(updates, len(body), now)
    if admission.accepted:
        _tokenizer_manager()._dispatch_to_scheduler(
            KVFlowStepsReq(updates=admission.accepted, received_at=now)
        )
    if admission.refusal is None:
        return Response(status_code=202)
    refuse(admission.refusal.field)
    return _over_bounds(admission)


async def _prewarm(request: Request) -> Response:
    if not is_active():
        return _not_active()
    if not prewarms():
        return _error(
            403,
            "kvflow_prewarm_off",
            "this server computes nothing ahead; start it with --kvflow-prewarm",
        )
    from .prewarm import to_message

    try:
        asked = parse_prewarm(_decoded(await _body(request, MAX_PREWARM_BYTES)))
        serving = request.app.state.openai_serving_chat
        message = to_message(serving, _tokenizer_manager(), asked)
    except WireError as error:
        refuse(error.field)
        return _refusal(error)
    _tokenizer_manager()._dispatch_to_scheduler(message)
    return JSONResponse({"tokens": len(message.tokens) // 8}, status_code=202)


async def _state(request: Request) -> JSONResponse:
    state = await _asked(request)
    if isinstance(state, JSONResponse):
        return state
    for reason, count in dropped.reasons.items():
        totals = state["dropped_metadata"]
        totals[reason] = totals.get(reason, 0) + count
    state["refused_updates"] = dict(refused)
    return JSONResponse(state)


async def _drift(request: Request) -> JSONResponse:
    """Agents whose calls part before the end of what should be fixed. Tokens only:
    what stands there is known to the client (`kvflow lint`)."""
    state = await _asked(request)
    if isinstance(state, JSONResponse):
        return state
    agents = [
        {"client": client, "agent": agent, **drift}
        for client, known in state["clients"].items()
        for agent, entry in known["agents"].items()
        if (drift := entry["learned"]["drift"]) is not None
    ]
    agents.sort(key=lambda entry: -entry["lost"])
    return JSONResponse(
        {"agents": agents, "clients_left_out": state["clients_left_out"]}
    )


async def _asked(request: Request) -> dict[str, Any] | JSONResponse:
    """The scheduler's state, or the answer that says why there is none."""
    from kvflow_server.engine.fanout import merge_states
    from kvflow_server.engine.messages import KVFlowStateReq

    if not is_active():
        return _not_active()
    try:
        clients, ids = _question(request)
    except WireError as error:
        return _refusal(error)
    manager = _tokenizer_manager()
    manager.auto_create_handle_loop()
    # Shielded: a caller that goes away must not leave a reply for the next one.
    ask = asyncio.ensure_future(
        manager.kvflow_state_communicator(KVFlowStateReq(clients=clients, ids=ids))
    )
    try:
        replies = await asyncio.wait_for(asyncio.shield(ask), _STATE_TIMEOUT_S)
    except TimeoutError:
        return _error(
            504,
            "kvflow_timeout",
            f"the scheduler did not answer within {_STATE_TIMEOUT_S:g} s",
        )
    states = [reply.state for reply in replies]
    if not all(states):
        return _error(500, "kvflow_internal", "the state is not readable: see the log")
    return merge_states(states)


def _question(request: Request) -> tuple[int, bool]:
    """How many clients to show, and whether by their ids. Raises `WireError`."""
    asked = request.query_params.get("clients", str(DEFAULT_CLIENTS))
    if not asked.isdecimal() or len(asked) > 9 or int(asked) > MAX_CLIENTS:
        raise WireError(
            f"clients: a number from 0 to {MAX_CLIENTS}, not {asked[:32]!r}",
            field="clients",
        )
    ids = request.query_params.get("ids", "short")
    if ids not in ("short", "full"):
        raise WireError(f"ids: short or full, not {ids[:32]!r}", field="ids")
    if ids == "full" and not has_admin_key(request.headers.get("authorization")):
        raise WireError(
            "ids: a client's id is the right to steer its entries, so it is shown in "
            "full only to the key of --admin-api-key",
            field="ids",
            status=403,
        )
    return int(asked), ids == "full"


async def _body(request: Request, limit: int = MAX_INFLATED_BYTES) -> bytes:
    """The body, refused before more than the bound of it has been read or inflated."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise WireError(
            f"content-encoding: {encoding[:32]!r} is not accepted, send the JSON as it "
            "is",
            field="content-encoding",
            status=415,
        )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:18]) > limit:
        raise _too_long(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_long(limit)
    except TimeoutError as error:
        raise WireError(
            f"body: not complete within {_BODY_TIMEOUT_S:g} s", field="body", status=408
        ) from error
    except ClientDisconnect as error:
        raise WireError("body: cut short", field="body") from error
    return bytes(body)


def _too_long(limit: int) -> WireError:
    return WireError(f"body: more than {limit} bytes", field="body", status=413)


def _decoded(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"body: not JSON ({error})", field="body") from error


def _refusal(error: WireError) -> JSONResponse:
    return _error(error.status, "kvflow_wire_error", str(error), field=error.field)


def _over_bounds(admission: Admission) -> JSONResponse:
    refusal = admission.refusal
    assert refusal is not None
    answer = _error(
        429,
        "kvflow_limit",
        refusal.message,
        field=refusal.field,
        accepted=len(admission.accepted),
    )
    answer.headers["retry-after"] = str(refusal.retry_after_s)
    return answer


def _not_active() -> JSONResponse:
    return _error(
        404,
        "kvflow_not_active",
        "KVFlow is installed but not chosen; start the server with `kvflow serve`, or "
        "SGLang with --radix-cache-backend kvflow.",
    )


def _error(status: int, kind: str, message: str, **details: Any) -> JSONResponse:
    error = {"type": kind, "message": message, **details}
    return JSONResponse({"error": error}, status_code=status)


def _tokenizer_manager() -> Any:
    from sglang.srt.entrypoints.http_server import get_global_state

    return get_global_state().tokenizer_manager
