"""SGLang's scheduler in small: real requests, adder, cache, pools, streams and copies.

What is missing is the model. In its place every KV slot gets a checksum of the tokens
up to it, and every forward checks all slots that it reads. So a slot that is read too
early, freed too early or given to two owners is seen at once, in device and in host
memory. Time passes on the bus only when it is told to or when somebody waits for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from contents import LAYERS, NEVER_S, Road, check_contents, checksums

from kvflow_sdk.wire import StepUpdate, to_envelope


@dataclass
class Miniature:
    """The loop of one scheduler, pass by pass. Not overlapped, no chunks."""

    harness: Any
    limit: int = 4
    """Requests that may run at once."""
    waiting: list[Any] = field(default_factory=list)
    running: list[Any] = field(default_factory=list)
    finished: list[Any] = field(default_factory=list)
    full: bool = False
    """SGLang's `batch_is_full`: no prefill is tried until something changes."""
    now: float = 0.0
    passes: int = 0
    retractions: int = 0
    down: Road = field(default_factory=Road)
    up: Road = field(default_factory=Road)
    """To the device, and from it."""

    def __post_init__(self) -> None:
        self.cache = self.harness.cache
        self.cache.clock = self
        self.metrics_collector_context = SimpleNamespace(
            current_scheduler_metrics_enabled=False
        )
        self.allocator = self.harness.allocator
        self.rows = self.cache.req_to_token_pool
        self.device = self.allocator.get_kvcache()
        self.host = self.cache.full_component._full_kv_pool_host

    @contextlib.contextmanager
    def in_charge(self) -> Iterator[None]:
        """Within the block, copies and clocks are this miniature's."""
        from kvflow_server.emulated import streams, transfer

        bus = transfer.Bus(
            transfer.Link(0, gate=self.down.gate), transfer.Link(0, gate=self.up.gate)
        )
        patient = mock.patch.object(
            streams._Marker, "wait", lambda marker: self._wait(marker)
        )
        with (
            mock.patch.object(transfer, "BUS", bus),
            patient,
        ):
            try:
                yield
            finally:
                self.down.open()
                self.up.open()

    # What a client does.

    def submit(
        self, tokens: Sequence[int], *, output: int, update: StepUpdate | None = None
    ) -> Any:
        from sglang.srt.managers.kv_hints import decode_kv_hints_envelope
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        hints = None
        if update is not None:
            hints = decode_kv_hints_envelope(to_envelope([update]))
        req = Req(
            rid=f"r{len(self.waiting) + len(self.running) + len(self.finished)}",
            origin_input_text="",
            origin_input_ids=array("q", tokens),
            sampling_params=SamplingParams(max_new_tokens=output),
        )
        from kvflow_server.engine.scheduling import tag_request

        received = SimpleNamespace(kv_hints=hints, input_ids=list(tokens))
        tag_request(req, self, received)
        self.waiting.append(req)
        return req

    def abort(self, req: Any) -> None:
        """The client has gone away."""
        if req in self.waiting:
            self.waiting.remove(req)
            self.finished.append(req)
        elif req in self.running:
            self._finish(req)

    # What the scheduler does.

    @property
    def tree_cache(self) -> Any:
        return self.cache

    @property
    def waiting_queue(self) -> list[Any]:
        return self.waiting

    @property
    def new_token_ratio_tracker(self) -> Any:
        return SimpleNamespace(current=0.2)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running)

    def step(self) -> None:
        """One pass: SGLang's order of doing things."""
        from kvflow_server.engine.scheduling import after_pass

        self.passes += 1
        self.cache.check_hicache_events()
        batch, consumer = self._prefill()
        if batch:
            self._allocate(batch)
        elif self.running:
            self._make_room()
            batch = self.running
            self._allocate_decode()
        after_pass(self._plan(batch, consumer), self)
        self._forward(batch, consumer)
        self.cache.flush_pending_backups()

    def flush(self) -> bool:
        from kvflow_server.engine.scheduling import before_flush

        before_flush(self)
        copying = self.cache.ongoing_write_through or self.cache.ongoing_load_back
        if not self.idle or copying:
            return False
        self.cache.reset()
        self.allocator.clear()
        return True

    def run_dry(self, most: int = 2000) -> None:
        """Until everything is answered and nothing is copied any more."""
        for _ in range(most):
            if self.idle and not self._copies():
                return
            self.step()
            self.advance(self.down, 1)
            self.advance(self.up, 1)
        raise AssertionError(f"{len(self.waiting)} requests hang")

    def advance(self, road: Road, copies: int) -> None:
        """Let copies of this road be made, as far as there are any."""
        for _ in range(copies):
            under_way = [
                ack for ack in self._acks(road) if not ack.finish_event.query()
            ]
            if not under_way:
                return
            road.let_through(under_way[0].finish_event.query)

    def _plan(self, batch: Sequence[Any], consumer: int) -> Any:
        """As SGLang's: a batch that decodes is the running batch itself."""
        running = self._batch(self.running, -1)
        to_run = running if batch is self.running else self._batch(batch, consumer)
        return SimpleNamespace(
            batch_to_run=to_run if batch else None, running_batch=running
        )

    def _batch(self, reqs: Sequence[Any], consumer: int) -> Any:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        decodes = reqs is self.running
        return SimpleNamespace(
            reqs=list(reqs),
            forward_mode=ForwardMode.DECODE if decodes else ForwardMode.EXTEND,
            hicache_consumer_index=consumer,
            chunked_req=None,
            extend_num_tokens=0 if decodes else sum(req.extend_len for req in reqs),
        )

    def _prefill(self) -> tuple[list[Any], int]:
        from sglang.srt.managers.schedule_policy import AddReqResult

        if self.full or not self.waiting or len(self.running) >= self.limit:
            return [], -1
        adder = self._adder()
        for req in self.waiting:
            if len(self.running) + len(adder.can_run_list) >= self.limit:
                break
            req.init_next_round_input(self.cache)
            result = adder.add_one_req(
                req, has_chunked_req=False, truncation_align_size=None
            )
            if result is not AddReqResult.CONTINUE:
                if result is AddReqResult.NO_TOKEN:
                    self.full = bool(adder.can_run_list or self.running)
                break
        if not adder.can_run_list:
            return [], -1
        self.waiting = [r for r in self.waiting if r not in adder.can_run_list]
        return list(adder.can_run_list), self.cache.ready_to_load_host_cache()

    def _adder(self) -> Any:
        from kvflow_server.engine.scheduling import KVFlowPrefillAdder

        running = list(self.running)
        return KVFlowPrefillAdder(
            page_size=self.cache.page_size,
            tree_cache=self.cache,
            token_to_kv_pool_allocator=self.allocator,
            running_batch=SimpleNamespace(
                reqs=running, batch_size=lambda: len(running)
            ),
            new_token_ratio=0.2,
            rem_input_tokens=1 << 14,
            rem_chunk_tokens=None,
            max_running_requests=self.limit,
            waiting_queue_len=len(self.waiting),
        )

    def _allocate(self, batch: Sequence[Any]) -> None:
        from sglang.srt.mem_cache.allocation import alloc_req_slots, alloc_token_slots

        prefixes = [
            self.cache.prefix_device_indices(req)
            if req.prefix_len
            else torch.empty(0, dtype=torch.int64)
            for req in batch
        ]
        alloc_req_slots(self.rows, list(batch), self.cache)
        slots = alloc_token_slots(self.cache, sum(req.extend_len for req in batch))
        for req, prefix in zip(batch, prefixes, strict=True):
            own, slots = slots[: req.extend_len], slots[req.extend_len :]
            row = torch.cat([prefix.to(torch.int32), own.to(torch.int32)])
            assert len(row) == req.extend_end
            self.rows.write((req.kv.req_pool_idx, slice(0, len(row))), row)
            req.kv.kv_allocated_len = req.kv.kv_committed_len = req.extend_end
            req.is_retracted = False

    def _allocate_decode(self) -> None:
        from sglang.srt.mem_cache.allocation import alloc_token_slots

        slots = alloc_token_slots(self.cache, len(self.running))
        for req, slot in zip(self.running, slots.to(torch.int32), strict=True):
            place = req.kv.kv_committed_len
            self.rows.write((req.kv.req_pool_idx, slice(place, place + 1)), slot)
            req.prefix_len = place
            req.extend_end = place + 1
            req.kv.kv_allocated_len = req.kv.kv_committed_len = place + 1
            req.refresh_fill_ids()

    def _make_room(self) -> None:
        """SGLang's `check_decode_mem` and `retract_decode`."""
        from sglang.srt.managers.schedule_batch import release_req

        while not self.allocator.check_decode_capacity(
            num_tokens=len(self.running), tree_cache=self.cache, requests=self.running
        ):
            assert len(self.running) > 1, "SGLang would abort its last request here"
            req = self.running.pop()
            self.retractions += 1
            self.full = False
            release_req(
                req=req,
                remaing_req_count=len(self.running),
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.allocator,
                tree_cache=self.cache,
                hisparse_coordinator=None,
            )
            self.waiting.append(req)

    def _forward(self, batch: Sequence[Any], consumer: int) -> None:
        """Layer by layer: wait for what the batch joined, read everything, write."""
        counter = self.cache.cache_controller.layer_done_counter
        counter.set_consumer(consumer)
        for layer in range(LAYERS):
            if consumer >= 0:
                counter.wait_until(layer)
            for req in batch:
                row = self.rows.req_to_token[req.kv.req_pool_idx]
                values = checksums(req.full_untruncated_fill_ids[: req.extend_end])
                self._read(layer, row[: req.prefix_len], values, f"{req.rid} reads")
                new = row[req.prefix_len : req.extend_end].long()
                self.device.k_buffer[layer][new] = values[
                    req.prefix_len :, None, None
                ] + float(layer)
                self.device.v_buffer[layer][new] = -values[req.prefix_len :, None, None]
        for req in list(batch):
            self._sample(req)

    def _read(
        self, layer: int, row: torch.Tensor, values: torch.Tensor, who: str
    ) -> None:
        keys = self.device.k_buffer[layer][row.long()][:, 0, 0]
        wrong = (keys != values[: len(row)] + layer).nonzero().flatten().tolist()
        assert not wrong, f"{who} tokens {wrong} of layer {layer}, which are not there"

    def _sample(self, req: Any) -> None:
        from sglang.srt.mem_cache.common import checkpoint_kv_cache

        req.output_ids.append(int(checksums(req.full_untruncated_fill_ids)[-1]) % 3)
        if len(req.output_ids) >= req.sampling_params.max_new_tokens:
            self._finish(req)
        elif req not in self.running:
            checkpoint_kv_cache(req, self.cache)
            self.running.append(req)

    def _finish(self, req: Any) -> None:
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH
        from sglang.srt.mem_cache.common import release_kv_cache

        req.finished_reason = FINISH_LENGTH(length=len(req.output_ids))
        release_kv_cache(req, self.cache, checkpoint=True)
        if req in self.running:
            self.running.remove(req)
        self.finished.append(req)
        self.full = False

    def _copies(self) -> bool:
        controller = self.cache.cache_controller
        return bool(
            controller.ack_load_queue
            or controller.ack_write_queue
            or controller.write_queue
        )

    def _acks(self, road: Road) -> list[Any]:
        controller = self.cache.cache_controller
        down = road is self.down
        return list(controller.ack_load_queue if down else controller.ack_write_queue)

    def _wait(self, marker: Any) -> None:
        """Instead of `_Marker.wait`: whoever waits on the scheduler's thread lets the
        bus go on, first towards the device."""
        if threading.current_thread() is threading.main_thread():
            for road in (self.down, self.up):
                while not marker.done.is_set() and any(
                    not ack.finish_event.query() for ack in self._acks(road)
                ):
                    self.advance(road, 1)
            # Of a copy whose acknowledgement is out of the queue already.
            deadline = time.monotonic() + NEVER_S
            while not marker.done.is_set() and time.monotonic() < deadline:
                self.down.nudge()
                self.up.nudge()
        assert marker.done.wait(NEVER_S), "a wait without end"
        marker.check()

    # What must hold.

    def check(self) -> None:
        """Slots are conserved, and every slot in the tree holds what it should."""
        held = sum(
            req.kv.kv_allocated_len - req.kv.cache_protected_len for req in self.running
        )
        total = (
            self.allocator.available_size()
            + self.cache.evictable_size()
            + self.cache.protected_size()
            + held
        )
        assert total == self.allocator.size, "a slot has leaked, or has two owners"
        assert self.rows.available_size() + len(self.running) == self.rows.size
        check_contents(self.cache.tree_core.root_node, self.device, self.host)
