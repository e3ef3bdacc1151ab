"""A large radix tree on SGLang's real cache and pools, without a model or a server.

The keys and values are small, the tree is not: many clients with a prompt of their own,
agents below it, and leaves below those; the pool is full.
"""

from __future__ import annotations

import os
import time
from array import array
from dataclasses import dataclass
from typing import Any

from kvflow_sdk.wire import StepUpdate

__all__ = ["Forest", "ForestSize", "insert", "make_cache", "make_tag", "slots_for"]

CLIENT = AGENT = LEAF = 8
"""Tokens of a client's common beginning, of an agent's own prompt, and of a leaf."""


@dataclass(frozen=True, slots=True)
class ForestSize:
    """Raises ValueError unless every agent can be a leaf or have one."""

    leaves: int = 40_000
    clients: int = 500
    agents: int = 20

    def __post_init__(self) -> None:
        if self.clients < 2 or self.agents < 1 or self.leaves < 2 * self.prompts:
            raise ValueError("need 2 clients, an agent, and 2 leaves for each prompt")

    @property
    def prompts(self) -> int:
        return self.clients * self.agents

    @property
    def bare_clients(self) -> int:
        """Clients whose prompts have nothing below them, so that they are leaves."""
        return max(1, self.clients // 10)

    @property
    def tokens(self) -> int:
        below = self.leaves - self.bare_clients * self.agents
        return self.clients * CLIENT + self.prompts * AGENT + below * LEAF


class Forest:
    """One cache of one kind, filled. `core` is kvflow, or stock SGLang's python or rust.

    Tagged as a KVFlow client would tag it where the core is KVFlow's.
    """

    def __init__(self, core: str, size: ForestSize, *, tagged: bool = True) -> None:
        self.size = size
        self.tagged = tagged and core == "kvflow"
        self.cache, self._allocator = make_cache(core, size.tokens)
        self._seq = 0
        self._fresh = 1 << 40
        """Token ids that nothing else begins with."""

    def fill(self) -> None:
        """Insert everything; the pool is full then."""
        size = self.size
        self._tell_all()
        for client in range(size.clients):
            for agent in range(size.agents):
                self._insert(client, agent, leaf=False)
        for index in range(size.leaves - size.bare_clients * size.agents):
            self.add_leaf(index)

    def add_leaf(self, index: int) -> None:
        """One more leaf below some agent's prompt; needs room for it."""
        size = self.size
        having = size.clients - size.bare_clients
        client = size.bare_clients + index % having
        self._insert(client, index // having % size.agents, leaf=True)

    def evict(self, leaves: int) -> int:
        """Tokens freed by evicting so many leaves."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        params = EvictParams(num_tokens=leaves * LEAF)
        return int(self.cache.evict(params).num_tokens_evicted)

    @staticmethod
    def leaves_in(tokens: int) -> int:
        """Leaves that fit into so many tokens."""
        return tokens // LEAF

    def tell(self, client: int) -> float:
        """Apply an update of the client as the scheduler would; seconds it took."""
        update = self.make_update(client)
        start = time.perf_counter()
        self.cache.apply_update(update)
        self.cache.prefetcher.candidates.take_in()
        return time.perf_counter() - start

    def make_update(self, client: int) -> StepUpdate:
        """A whole snapshot of the client's workflow, every agent at another step."""
        self._seq += 1
        agents = self.size.agents
        steps = {f"agent {n}": (n - self._seq) % agents for n in range(agents)}
        return StepUpdate(client=_client(client), run="run", seq=self._seq, steps=steps)

    def _tell_all(self) -> None:
        if self.tagged:
            for client in range(self.size.clients):
                self.tell(client)

    def _insert(self, client: int, agent: int, *, leaf: bool) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import (
            InsertParams,
            MatchPrefixParams,
        )
        from sglang.srt.mem_cache.radix_cache import RadixKey

        first = 1_000_000 * (client + 1)
        tokens = array("q", range(first, first + CLIENT))
        own = first + 100 * (agent + 1)
        tokens.extend(range(own, own + AGENT))
        if leaf:
            self._fresh += LEAF
            tokens.extend(range(self._fresh, self._fresh + LEAF))
        key = RadixKey(tokens, None)
        hit = self.cache.match_prefix(MatchPrefixParams(key=key))
        prefix = self.cache.path_device_indices(hit.last_device_node)
        params = InsertParams(
            key=key,
            value=slots_for(self._allocator, prefix, len(tokens)),
            prev_prefix_len=len(prefix),
        )
        tag = None
        if self.tagged:
            fixed = CLIENT + AGENT
            digest = hash(tuple(tokens[:fixed]))
            run = "".join(("r", "un"))
            tag = make_tag(_client(client), run, f"agent {agent}", fixed, digest)
        insert(self.cache, params, tag)


def slots_for(allocator: Any, prefix: Any, tokens: int) -> Any:
    """The slots of so many tokens, of which `prefix` has its own already."""
    import torch

    slots = allocator.alloc(tokens - len(prefix))
    if slots is None:
        raise RuntimeError("the pool is too small for the tree")
    return torch.cat([prefix, slots])


def insert(cache: Any, params: Any, tag: Any) -> None:
    """As the scheduler does for a call with this tag; None: for one without."""
    if tag is None:
        cache.insert(params)
        return
    with cache.writing_as(tag):
        result = cache.insert(params)
    cache.label_path(result.last_device_node, tag)


def _client(index: int) -> str:
    """A new string each time, as each request brings one."""
    return f"client-{index:032x}"


def make_tag(client: str, run: str, agent: str, fixed: int, digest: int) -> Any:
    """Of a call whose first `fixed` tokens are the prompt with this digest."""
    from kvflow_server.engine.hints import RequestTag
    from kvflow_server.policy.priority import Owner

    return RequestTag(Owner(client, run, agent), fixed, digest)


def make_cache(core: str, tokens: int) -> tuple[Any, Any]:
    """The cache and its allocator, on the CPU."""
    os.environ.setdefault("SGLANG_PLATFORM", "kvflow_emulated")
    # First, or its lazy choice of a platform meets itself half imported.
    from sglang.srt.platforms import current_platform  # noqa: F401  # isort: skip
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    args = ServerArgs(model_path="dummy", device="cpu", page_size=1)
    set_global_server_args_for_scheduler(args)
    allocator = _make_allocator(tokens)
    params = CacheInitParams(
        req_to_token_pool=ReqToTokenPool(
            size=8, max_context_len=256, device="cpu", enable_memory_saver=False
        ),
        token_to_kv_pool_allocator=allocator,
        page_size=1,
        disable=False,
        tree_components=(ComponentType.FULL,),
    )
    params.tree_core_backend = core
    if core != "kvflow":
        return UnifiedRadixCache(params), allocator
    from kvflow_server.engine.cache import KVFlowCache
    from kvflow_server.engine.config import EngineConfig

    params.tree_core_backend = _register_core()
    return KVFlowCache(params, EngineConfig()), allocator


def _make_allocator(tokens: int) -> Any:
    """A pool of `tokens` slots, each as small as can be."""
    import torch
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    memory = MHATokenToKVPool(
        size=tokens,
        page_size=1,
        dtype=torch.float32,
        head_num=1,
        head_dim=2,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    return TokenToKVPoolAllocator(
        size=tokens, dtype=torch.float32, device="cpu", kvcache=memory, need_sort=False
    )


def _register_core() -> str:
    """The name of KVFlow's tree core; not the plugin's, which registers its own."""
    from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
        get_tree_core_factory,
        register_tree_core_backend,
    )

    from kvflow_server.engine.factory import create_tree_core

    name = "kvflow_bench"
    if get_tree_core_factory(name) is None:
        register_tree_core_backend(name, create_tree_core)
    return name
