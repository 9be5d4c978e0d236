"""What our servers tell Prometheus about themselves."""

from __future__ import annotations

import functools

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram
from starlette.responses import Response

_REQUEST_SECONDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_SEARCH_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class _Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()

    def reply(self) -> Response:
        """All of them, in Prometheus's format."""
        text = prometheus_client.generate_latest(self.registry)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)


class AgentMetrics(_Metrics):
    """Of the agent's server."""

    def __init__(self) -> None:
        super().__init__()
        counter = functools.partial(Counter, registry=self.registry)
        self.requests = counter("seekling_requests", "Requests by address and status.", ["route", "status"])
        self.questions = counter("seekling_questions", "Questions by what came of them.", ["outcome"])
        self.feedback = counter("seekling_feedback", "Feedback by its kind.", ["kind"])
        self.seconds = Histogram(
            *("seekling_question_seconds", "Time from question to answer."),
            buckets=_REQUEST_SECONDS,
            registry=self.registry,
        )
        self.num_open = Gauge("seekling_open_questions", "Questions worked on or waiting.", registry=self.registry)

    def count_request(self, route: str, status: int) -> None:
        """Count a request."""
        self.requests.labels(route, str(status)).inc()


class SearchMetrics(_Metrics):
    """Of the search server; each by index."""

    def __init__(self) -> None:
        super().__init__()
        counter = functools.partial(Counter, registry=self.registry)
        histogram = functools.partial(Histogram, labelnames=["index"], registry=self.registry)
        self.requests = counter("seekling_search_requests", "Requests by index and status.", ["index", "status"])
        self.queries = counter("seekling_search_queries", "Queries asked.", ["index"])
        self.seconds = histogram("seekling_search_request_seconds", "Time to answer.", buckets=_SEARCH_SECONDS)
        self.batch = histogram("seekling_search_batch_queries", "Queries searched together.", buckets=_QUERIES)
        self.num_waiting = Gauge(
            *("seekling_search_waiting_queries", "Queries whose search has not begun.", ["index"]),
            registry=self.registry,
        )
