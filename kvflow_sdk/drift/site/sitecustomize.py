"""Imported by Python at start because `kvflow lint` put this directory first.

By path and not by name: the program's Python need not have KVFlow installed.
"""

import importlib.util
from pathlib import Path

_here = Path(__file__).parent
_spec = importlib.util.spec_from_file_location(
    "_kvflow_recording", _here.parent / "recording.py"
)
if _spec is not None and _spec.loader is not None:
    _recording = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_recording)
    _recording.install()
    _recording.chain(str(_here))
