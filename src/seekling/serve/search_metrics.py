"""What the search server tells Prometheus about itself."""

from __future__ import annotations

from collections.abc import Callable

import prometheus_client

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class SearchMetrics:
    """The metrics of one server, in a registry of their own."""

    media_type = prometheus_client.CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "seekling_search_requests", "Requests by index and status.", ["index", "status"], registry=registry
        )
        self._seconds = prometheus_client.Histogram(
            "seekling_search_request_seconds", "Time to answer.", ["index"], buckets=_SECONDS, registry=registry
        )
        self._queries = prometheus_client.Counter(
            "seekling_search_queries", "Queries asked.", ["index"], registry=registry
        )
        self._batch = prometheus_client.Histogram(
            "seekling_search_batch_queries",
            "Queries searched together.",
            ["index"],
            buckets=_QUERIES,
            registry=registry,
        )
        self._waiting = prometheus_client.Gauge(
            "seekling_search_waiting_queries", "Queries whose search has not begun.", ["index"], registry=registry
        )

    def watch(self, index: str, *, waiting: Callable[[], int]) -> None:
        """Read the gauge of an index whenever it is asked for."""
        self._waiting.labels(index).set_function(waiting)

    def batch_of(self, index: str) -> Callable[[int], None]:
        """What to call with the size of each batch."""
        return self._batch.labels(index).observe

    def count_queries(self, index: str, number: int) -> None:
        """Count the queries of a request."""
        self._queries.labels(index).inc(number)

    def count_request(self, index: str, status: int, seconds: float) -> None:
        """Count a request and how long it took."""
        self._requests.labels(index, str(status)).inc()
        self._seconds.labels(index).observe(seconds)

    def text(self) -> bytes:
        """All of them, in Prometheus's format."""
        return prometheus_client.generate_latest(self._registry)
