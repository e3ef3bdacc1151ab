"""A KVFlow cache on SGLang's real pools, in this process, without a model.

The emulated accelerator is chosen before SGLang is imported; SGLang picks its platform
once per process.
"""

from __future__ import annotations

import atexit
import os
import warnings
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kvflow_sdk.wire import StepUpdate
from kvflow_server.engine.config import EngineConfig, Mode
from kvflow_server.policy.backup import Backup
from kvflow_server.policy.prefetch import PrefetchLimits
from kvflow_server.policy.priority import Owner

os.environ["SGLANG_PLATFORM"] = "kvflow_emulated"
os.environ["KVFLOW_EMULATED_PCIE_GBPS"] = "0"

CLIENT = "client-0123456789abcdef"


@dataclass
class Harness:
    """One cache and its pools, driven as the scheduler would."""

    cache: Any
    allocator: Any
    seq: int = 0

    def key(self, tokens: list[int]) -> Any:
        from sglang.srt.mem_cache.radix_cache import RadixKey

        return RadixKey(array("q", tokens), None)

    def match(self, tokens: list[int]) -> Any:
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        return self.cache.match_prefix(MatchPrefixParams(key=self.key(tokens)))

    def insert(self, tokens: list[int], tag: Any = None) -> bool:
        """Compute `tokens` and write them to the tree; False if there is no room."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams

        hit = self.match(tokens)
        prefix = self.cache.path_device_indices(hit.last_device_node)
        need = len(tokens) - len(prefix)
        lock = self.cache.inc_lock_ref(hit.last_device_node)
        try:
            short = need - self.allocator.available_size()
            if short > 0:
                self.cache.evict(EvictParams(num_tokens=short))
            slots = self.allocator.alloc(need) if need else prefix[:0]
        finally:
            self.cache.dec_lock_ref(hit.last_device_node, lock.to_dec_params())
        if slots is None:
            return False
        import torch

        params = InsertParams(
            key=self.key(tokens),
            value=torch.cat([prefix, slots.to(torch.int64)]),
            prev_prefix_len=len(prefix),
        )
        if tag is None:
            self.cache.insert(params)
        else:
            with self.cache.writing_as(tag):
                result = self.cache.insert(params)
            self.cache.label_path(result.last_device_node, tag)
        return True

    def backup(self) -> None:
        """Wait until everything queued for host memory has arrived there."""
        self.cache.writing_check(write_back=True)

    def evict(self, tokens: int) -> int:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        return int(self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted)

    def say_speeds(self, *, bus: int, prefill: int) -> None:
        """In tokens per second, as if so measured."""
        for _ in range(16):
            self.cache.speeds.bus.took_at_least(bus, 1.0)
            self.cache.speeds.prefill.took_at_most(prefill, 1.0)

    def finish_loads(self) -> None:
        """Let every copy in flight end, and be acknowledged."""
        self.cache.drain_loads()

    @property
    def client(self) -> str:
        """Who says what is said, unless told otherwise."""
        return CLIENT

    def device_tokens(self, tokens: list[int]) -> int:
        """Tokens of the prefix on the device; touches nothing."""
        total = 0
        for node in self.cache.tree_core.walk(self.key(tokens)):
            if node.evicted:
                break
            total += len(node.key)
        return total

    def tag(self, agent: str, fixed: int, tokens: list[int], **names: str) -> Any:
        from kvflow_server.engine.hints import RequestTag

        owner = Owner(names.get("client", CLIENT), names.get("run", "run"), agent)
        return RequestTag(owner, fixed, digest=hash(tuple(tokens[:fixed])))

    def update(self, steps: dict[str, int] | None = None, **fields: Any) -> Any:
        self.seq += 1
        fields = {"client": CLIENT, "run": "run", "seq": self.seq, **fields}
        return self.cache.apply_update(StepUpdate(steps=steps, **fields))

    def prefetch(
        self, busy: set[tuple[str, str]] | None = None, *, computing: bool = True
    ) -> None:
        """One planner pass."""
        self.cache.prefetcher.run(lambda: busy or set(), lambda: 0, computing=computing)

    def check(self) -> None:
        """SGLang's own invariants and KVFlow's."""
        self.cache.sanity_check()
        self.cache.check_integrity()


@pytest.fixture(scope="session", autouse=True)
def _sglang() -> None:
    """Import SGLang once, whose modules warn of hardware that is not there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # First, or its lazy choice of a platform meets itself half imported.
        from sglang.srt.platforms import current_platform  # noqa: F401  # isort: skip
        import sglang.srt.managers.scheduler
        import sglang.srt.mem_cache.unified_radix_cache
        import sglang.srt.server_args  # noqa: F401


@pytest.fixture
def builder() -> Callable[..., Harness]:
    """`build`, for tests that release what they build."""
    return build


@pytest.fixture
def make_harness() -> Iterator[Callable[..., Harness]]:
    made: list[Any] = []

    def make(**options: Any) -> Harness:
        harness = build(**options)
        made.append(harness.cache)
        return harness

    yield make
    for cache in made:
        if cache.cache_controller is not None:
            atexit.unregister(cache.shutdown)
            cache.release_host_resources()


def build(
    *,
    pool: int = 256,
    host: bool = True,
    mode: Mode = Mode.FULL,
    stock: bool = False,
    page: int = 1,
    piece: int = 16,
    horizon: int = 1,
    idle_horizon: int = 1,
    agents_accounted: int = 1024,
    backup: Backup = Backup.REUSED,
    ratio: float = 4.0,
    share: float = 1.0,
    **settings: Any,
) -> Harness:
    """A cache of `pool` tokens, with `ratio` times as much host memory or none; `settings`
    are further ones of `EngineConfig`."""
    import torch
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    from kvflow_server.emulated.accelerator import install_seams
    from kvflow_server.engine.cache import KVFlowCache
    from kvflow_server.plugin import register

    install_seams()
    register()
    args = ServerArgs(
        model_path="dummy",
        device="cpu",
        page_size=page,
        hicache_io_backend="direct",
        hicache_mem_layout="layer_first",
        hicache_write_policy="write_through",
        hicache_ratio=ratio,
    )
    set_global_server_args_for_scheduler(args)
    memory = MHATokenToKVPool(
        size=pool,
        page_size=page,
        dtype=torch.float32,
        head_num=1,
        head_dim=8,
        layer_num=2,
        device="cpu",
        enable_memory_saver=False,
    )
    allocator = TokenToKVPoolAllocator(
        size=pool, dtype=torch.float32, device="cpu", kvcache=memory, need_sort=False
    )
    params = CacheInitParams(
        req_to_token_pool=ReqToTokenPool(
            size=8, max_context_len=pool, device="cpu", enable_memory_saver=False
        ),
        token_to_kv_pool_allocator=allocator,
        page_size=page,
        disable=False,
        tree_components=(ComponentType.FULL,),
    )
    params.tree_core_backend = "python" if stock else "kvflow"
    config = EngineConfig(
        mode=mode,
        prefetch=PrefetchLimits(
            piece_tokens=piece,
            horizon=horizon,
            idle_horizon=idle_horizon,
            agents_accounted=agents_accounted,
        ),
        backup=backup,
        debug=True,
        protected_share=share,
        **settings,
    )
    cache = UnifiedRadixCache(params) if stock else KVFlowCache(params, config)
    if host:
        cache.init_hicache(args, params)
        cache.load_back_threshold = 1
    return Harness(cache, allocator)
