"""The HTTP app of further tokenizer workers, with KVFlow in it.

With ``--tokenizer-worker-num`` above 1 each worker is a process that imports the app it
is told to (`activation.APP_PATH`) and has loaded no plugin.
"""

from __future__ import annotations

from sglang.srt.entrypoints.http_server import app
from sglang.srt.plugins import load_plugins

from kvflow_server.engine.seams import Role, activation_error

from .activation import let_in

__all__ = ["app"]

load_plugins()
if problems := let_in([Role.TOKENIZER, Role.HTTP]):
    raise activation_error(problems)
