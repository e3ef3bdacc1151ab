"""LoRA on the emulated accelerator: host memory that needs no pinning.

SGLang's arithmetic for adapters runs on a CPU (``--lora-backend torch_native``), but it
asks for pinned memory without asking the platform whether there is any, and torch
refuses that where no GPU is. As with the host pool, plain memory stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.lora.backend.torch_backend import TorchNativeLoRABackend
from sglang.srt.lora.lora_manager import LoRAManager
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    # What SGLang's and torch's untyped bases are to the type checker.
    class _Backend:
        def prepare_lora_batch(self, *args: Any, **kwargs: Any) -> None: ...

    class _Mode:
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

else:
    _Backend, _Mode = TorchNativeLoRABackend, TorchFunctionMode

__all__ = ["EmulatedLoRA", "Pageable", "install"]


class Pageable(_Mode):
    """While it is entered, a request of this thread for pinned memory gets plain."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0].clone()
        kwargs = {k: v for k, v in (kwargs or {}).items() if k != "pin_memory"}
        return func(*args, **kwargs)


class EmulatedLoRA(_Backend):
    """`TorchNativeLoRABackend` whose batches are described in plain memory."""

    def prepare_lora_batch(self, *args: Any, **kwargs: Any) -> None:
        with Pageable():
            super().prepare_lora_batch(*args, **kwargs)


def install() -> type[EmulatedLoRA]:
    """SGLang's factory of this backend, which its `LoRAManager` calls before it makes
    the adapters' layers: those keep their offsets in pinned memory, too."""
    if not hasattr(LoRAManager.init_state, "__wrapped__"):
        LoRAManager.init_state = _pageable(LoRAManager.init_state)
    return EmulatedLoRA


def _pageable(call: Callable[..., None]) -> Callable[..., None]:
    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> None:
        with Pageable():
            call(*args, **kwargs)

    return run
