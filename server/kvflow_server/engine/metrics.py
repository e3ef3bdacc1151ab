"""The counters as Prometheus metrics, in SGLang's own registry (``--enable-metrics``).

SGLang collects from several processes through files that `prometheus_client` maps into
memory. The scheduler's part is copied there at most once a second, between two passes,
so that no request pays for a metric; what the HTTP process refuses and drops is rare
and counted as it happens.

``/metrics`` needs no key in SGLang, so no client, run or agent is named here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvflow_server.policy.priority import EvictionClass

if TYPE_CHECKING:
    from .cache import KVFlowCache

__all__ = ["HttpMetrics", "Publisher", "publish_when_due"]

PREFIX = "sglang:kvflow_"
INTERVAL_S = 1.0

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric, and the counter behind each of its series."""

    name: str
    help: str
    series: Mapping[tuple[str, ...], str]
    """Label values -> name in `Counters.as_dict`."""
    labels: tuple[str, ...] = ()
    in_bytes: bool = False
    """The counter is in tokens, the metric in bytes."""


_TIERS = ("device", "host", "recomputed")


def _evicted(group: EvictionClass) -> str:
    return f"evicted_{group.name.lower()}"


_FAMILIES = (
    _Family(
        "prompt_tokens",
        "Prompt tokens of admitted requests, by where their KV was (device, loaded from "
        "host memory for the request, recomputed) and by kind (fixed prompt, dynamic "
        "suffix, untagged request).",
        {
            (kind, tier): f"{kind}_{tier}_tokens"
            for kind in ("fixed", "dynamic", "untagged")
            for tier in _TIERS
        },
        ("kind", "tier"),
    ),
    _Family(
        "prefetch_bytes",
        "Bytes prefetched from host memory: issued, then used by a request or evicted "
        "unused; late: still in flight when the request that needed them was admitted.",
        {
            ("issued",): "prefetch_tokens",
            ("used",): "prefetch_used_tokens",
            ("unused",): "prefetch_unused_tokens",
            ("late",): "late_join_tokens",
        },
        ("outcome",),
        in_bytes=True,
    ),
    _Family(
        "evicted_tokens",
        "Tokens evicted from the device, by the priority class they went in.",
        {(group.name.lower(),): _evicted(group) for group in EvictionClass},
        ("priority_class",),
    ),
    _Family(
        "h2d_bytes", "Bytes copied from host memory to the device.", {(): "h2d_bytes"}
    ),
    _Family("d2h_bytes", "Bytes backed up to host memory.", {(): "d2h_bytes"}),
    _Family(
        "load_on_demand_bytes",
        "Bytes loaded from host memory because a request needed them.",
        {(): "load_on_demand_tokens"},
        in_bytes=True,
    ),
    _Family(
        "skipped_requests",
        "Requests passed over at least once while their prefix loaded.",
        {(): "skipped_requests"},
    ),
    _Family(
        "skipped_passes",
        "Times a request was passed over while its prefix loaded.",
        {(): "skipped_passes"},
    ),
    _Family(
        "skipped_seconds",
        "Seconds from requests' first skips to their admissions.",
        {(): "skipped_s"},
    ),
    _Family(
        "step_updates",
        "Step updates, in band and out of band: applied, or stale (late or repeated).",
        {("applied",): "step_updates", ("stale",): "step_updates_stale"},
        ("outcome",),
    ),
)
_ELSEWHERE = {"step_messages", "step_latency_s"}
"""Counters that are the update latency's count and sum."""

_GAUGES = {
    "clients": "Clients whose lease runs.",
    "runs": "Live workflow runs.",
    "agents": "Distinct agents of live runs, by client.",
    "prompts": "Fixed prompts in the tree.",
    "overhead_p99_seconds": "99th percentile of what KVFlow adds to a scheduler pass.",
    "bus_bytes_per_second": "Measured on copies from host memory; 0: not yet.",
}


class Publisher:
    """Copies one cache's counters; every later counter has a metric of its own name."""

    def __init__(
        self, cache: KVFlowCache, labels: Mapping[str, Any], registry: Any = None
    ) -> None:
        # After SGLang has said where: the client decides at its import.
        import prometheus_client as prometheus

        self._cache = cache
        self._base = {name: str(value) for name, value in labels.items()}
        self._made = {"registry": registry or prometheus.REGISTRY}
        self._prometheus = prometheus
        self._last: dict[str, float] = {}
        self._series = self._counters()
        self._dropped = _dropped_counter(**self._made)
        self._gauges = {
            name: prometheus.Gauge(
                PREFIX + name,
                text,
                list(self._base),
                multiprocess_mode="mostrecent",
                **self._made,
            ).labels(**self._base)
            for name, text in _GAUGES.items()
        }
        self._latency = prometheus.Histogram(
            f"{PREFIX}step_latency_seconds",
            "From an out-of-band step update's arrival to its application.",
            list(self._base),
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
            **self._made,
        ).labels(**self._base)

    def publish(self) -> None:
        """Bring the metrics up to date."""
        counters = self._cache.counters
        evicted = self._cache.full_component.evicted_tokens
        values = counters.as_dict()
        values |= {_evicted(group): tokens for group, tokens in evicted.items()}
        for child, name, scale in self._series:
            self._add(child, name, values[name], scale)
        for reason, count in self._cache.dropped.reasons.items():
            model = self._base.get("model_name", "")
            child = self._dropped.labels(model, "scheduler", reason)
            self._add(child, f"dropped {reason}", count)
        while counters.latencies:
            self._latency.observe(counters.latencies.popleft())
        sizes = {**self._cache.table.counts(), "prompts": len(self._cache.prompts)}
        values = {
            **sizes,
            "bus_bytes_per_second": self._cache.bus_bytes_per_s or 0,
            "overhead_p99_seconds": self._cache.overhead.p99_s,
        }
        for name, gauge in self._gauges.items():
            gauge.set(values[name])

    def _add(self, child: Any, name: str, value: float, scale: float = 1) -> None:
        child.inc((value - self._last.get(name, 0)) * scale)
        self._last[name] = value

    def _counters(self) -> list[tuple[Any, str, float]]:
        """(Prometheus child, name of the counter, factor)."""
        covered = {name for family in _FAMILIES for name in family.series.values()}
        rest = self._cache.counters.as_dict().keys() - covered - _ELSEWHERE
        others = [
            _Family(name, f"KVFlow's counter {name}.", {(): name})
            for name in sorted(rest)
        ]
        found: list[tuple[Any, str, float]] = []
        for family in (*_FAMILIES, *others):
            metric = self._counter(family.name, family.help, family.labels)
            scale = self._cache.bytes_per_token if family.in_bytes else 1
            for values, name in family.series.items():
                labels = dict(zip(family.labels, values, strict=True))
                found.append((metric.labels(**self._base, **labels), name, scale))
        return found

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Any:
        return self._prometheus.Counter(
            f"{PREFIX}{name}_total", text, [*self._base, *labels], **self._made
        )


class HttpMetrics:
    """Those of the HTTP process. Any thread."""

    def __init__(self, model: str, registry: Any = None) -> None:
        import prometheus_client as prometheus

        made = {"registry": registry or prometheus.REGISTRY}
        self._model = model
        self._dropped = _dropped_counter(**made)
        self._refused = prometheus.Counter(
            f"{PREFIX}messages_refused_total",
            "Out-of-band messages that were refused, by the field at fault.",
            ["model_name", "reason"],
            **made,
        )

    def dropped(self, reason: str) -> None:
        self._dropped.labels(self._model, "http", reason).inc()

    def refused(self, reason: str) -> None:
        self._refused.labels(self._model, reason).inc()


def _dropped_counter(registry: Any) -> Any:
    import prometheus_client as prometheus

    return prometheus.Counter(
        f"{PREFIX}metadata_dropped_total",
        "In-band metadata that could not be used, by field; the call was served.",
        ["model_name", "stage", "reason"],
        registry=registry,
    )


def publish_when_due(cache: KVFlowCache, scheduler: Any) -> None:
    """Publish once a second, if SGLang's metrics are on and this rank has some."""
    now = time.monotonic()
    if now < cache.next_publish:
        return
    if cache.publisher is None:
        context = scheduler.metrics_collector_context
        if not context.current_scheduler_metrics_enabled:
            cache.next_publish = _NEVER
            return
        labels = {k: v for k, v in context.collector.labels.items() if k != "priority"}
        cache.publisher = Publisher(cache, labels)
    cache.publisher.publish()
    cache.next_publish = now + INTERVAL_S
