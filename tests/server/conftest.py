"""What all tests of the server environment need."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import warnings


def _keep_swig_alive() -> None:
    """Stop sentencepiece 0.2.1 from crashing the interpreter at exit.

    transformers imports it. The destructor of its SWIG data makes a type while the
    interpreter is going down under pytest, fails (`_PyObject_New(tp=NULL)`), and turns
    a passed run into exit code 139. With one more reference it is never destroyed.
    """
    with warnings.catch_warnings(), contextlib.suppress(ImportError):
        warnings.simplefilter("ignore")
        import sentencepiece  # noqa: F401
    for name, module in list(sys.modules.items()):
        if name.startswith("swig_runtime_data"):
            for value in vars(module).values():
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


_keep_swig_alive()
