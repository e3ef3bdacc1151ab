"""KVFlow's HTTP routes, on SGLang's own app.

=======================================  ==========================================
``GET  /kvflow/v1/capabilities``         what this server speaks; the SDK's probe
``POST /kvflow/v1/steps``                step updates out of band; 202 and no answer
``GET  /kvflow/v1/state``                clients, agents, prompts, counters
=======================================  ==========================================
"""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from kvflow_sdk.errors import WireError
from kvflow_sdk.wire import MAX_INFLATED_BYTES, capabilities, parse_envelope
from kvflow_server.engine.access import is_active

__all__ = ["add_routes"]

_STATE_TIMEOUT_S = 30.0


def add_routes(app: FastAPI) -> None:
    """Add the routes to SGLang's app; they fall under its API keys like its own, but
    for the capabilities (`engine.access`)."""
    router = APIRouter(prefix="/kvflow/v1")
    router.add_api_route("/capabilities", _capabilities, methods=["GET"])
    router.add_api_route("/steps", _steps, methods=["POST"])
    router.add_api_route("/state", _state, methods=["GET"])
    app.include_router(router)


async def _capabilities() -> JSONResponse:
    if not is_active():
        return _not_active()
    try:
        release = version("kvflow")
    except PackageNotFoundError:
        release = "unknown"
    return JSONResponse({**capabilities(), "version": release})


async def _steps(request: Request) -> Response:
    from kvflow_server.engine.messages import KVFlowStepsReq

    if not is_active():
        return _not_active()
    try:
        updates = parse_envelope(await _json_body(request))
    except WireError as error:
        return _refusal(error)
    if not updates:
        return _refusal(
            WireError("actions: holds no kvflow.step action", field="actions")
        )
    _tokenizer_manager()._dispatch_to_scheduler(KVFlowStepsReq(updates=updates))
    return Response(status_code=202)


async def _state() -> JSONResponse:
    from kvflow_server.engine.messages import KVFlowStateReq
    from kvflow_server.engine.openai_hints import dropped
    from kvflow_server.engine.seams import Role, unapplied_hooks

    if not is_active():
        return _not_active()
    manager = _tokenizer_manager()
    manager.auto_create_handle_loop()
    # Shielded: a caller that goes away must not leave a reply for the next one.
    ask = asyncio.ensure_future(manager.kvflow_state_communicator(KVFlowStateReq()))
    replies = await asyncio.wait_for(asyncio.shield(ask), _STATE_TIMEOUT_S)
    state: dict[str, Any] = replies[0].state
    for reason, count in dropped.reasons.items():
        totals = state["dropped_metadata"]
        totals[reason] = totals.get(reason, 0) + count
    # SGLang only logs when it cannot apply a hook; here an operator sees it.
    state["unapplied_hooks"] = unapplied_hooks(Role.HTTP)
    return JSONResponse(state)


async def _json_body(request: Request) -> object:
    """The decoded body, refused before more than the bound of it has been read."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_INFLATED_BYTES:
            raise WireError(
                f"body: more than {MAX_INFLATED_BYTES} bytes", field="body", status=413
            )
        chunks.append(chunk)
    try:
        body: object = msgspec.json.decode(b"".join(chunks))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"body: not JSON ({error})", field="body") from error
    return body


def _refusal(error: WireError) -> JSONResponse:
    return JSONResponse(
        {
            "error": {
                "type": "kvflow_wire_error",
                "field": error.field,
                "message": str(error),
            }
        },
        status_code=error.status,
    )


def _not_active() -> JSONResponse:
    return JSONResponse(
        {
            "error": {
                "type": "kvflow_not_active",
                "message": "KVFlow is installed but not chosen; start the server with "
                "`kvflow serve`, or SGLang with --radix-cache-backend kvflow.",
            }
        },
        status_code=404,
    )


def _tokenizer_manager() -> Any:
    from sglang.srt.entrypoints.http_server import get_global_state

    return get_global_state().tokenizer_manager
