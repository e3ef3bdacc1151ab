"""The platform class behind `platform.activate`, and the three seams it fills.

Imports SGLang at the top: only ever loaded by SGLang, when the platform is chosen.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from kvflow_server.emulated import streams, transfer

if TYPE_CHECKING:
    # What SGLang's untyped bases are to the type checker.
    class _Platform: ...

else:

    class _Platform(CpuDeviceMixin, SRTPlatform): ...


__all__ = ["EmulatedPlatform"]

logger = logging.getLogger(__name__)

_HOST_RESERVE_BYTES = 1 << 30


class EmulatedPlatform(_Platform):
    """CPU arithmetic with asynchronous, rate-limited host copies."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"

    def is_pin_memory_available(self, device: object = None) -> bool:
        return False

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def init_backend(self) -> None:
        """Give HiCache what it lacks on a CPU. SGLang calls this in each worker."""
        install_seams()
        gbps = transfer.BUS.host_to_device.bytes_per_second / 1e9
        logger.warning(
            "KVFlow's EMULATED accelerator: no GPU is used, host copies at %s",
            f"{gbps:g} GB/s each way" if gbps else "full speed",
        )


def install_seams() -> None:
    """Put the emulated streams, copies and allocation where HiCache looks, and our
    attention and LoRA under the names of SGLang's, which it knows in several places.

    Module attributes of SGLang 0.5.22 and 0.5.23; no function body is replaced.
    """
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.lora.backend.lora_registry import LORA_SUPPORTED_BACKENDS
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache import l2_transfer
    from sglang.srt.mem_cache.pool_host import base, mha
    from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS

    ATTENTION_BACKENDS["torch_native"] = _attention
    LORA_SUPPORTED_BACKENDS["torch_native"] = _lora
    ALLOC_MEMORY_FUNCS["cpu"] = transfer.alloc_host_memory
    mha.transfer_kv_direct = transfer.transfer_kv_direct
    cache_controller.device_module = streams
    l2_transfer.device_module = streams
    # SGLang refuses a host pool unless 10 GiB stay free, which a small machine with
    # several servers never has; here the pools are small, too.
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = _HOST_RESERVE_BYTES


def _attention(runner: Any) -> Any:
    from kvflow_server.emulated.attention import EmulatedAttention

    return EmulatedAttention(runner)


def _lora() -> Any:
    from kvflow_server.emulated.lora import install

    return install()
