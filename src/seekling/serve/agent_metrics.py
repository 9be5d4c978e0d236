"""What the agent's server tells Prometheus about itself."""

from __future__ import annotations

from collections.abc import Callable

import prometheus_client

_REQUEST_SECONDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class AgentMetrics:
    """The metrics of one server, in a registry of their own."""

    media_type = prometheus_client.CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "seekling_requests", "Requests by address and status.", ["route", "status"], registry=registry
        )
        self._questions = prometheus_client.Counter(
            "seekling_questions", "Questions by what came of them.", ["outcome"], registry=registry
        )
        self._seconds = prometheus_client.Histogram(
            "seekling_question_seconds", "Time from question to answer.", buckets=_REQUEST_SECONDS, registry=registry
        )
        self._feedback = prometheus_client.Counter(
            "seekling_feedback", "Feedback by its kind.", ["kind"], registry=registry
        )
        self._open = prometheus_client.Gauge(
            "seekling_open_questions", "Questions worked on or waiting.", registry=registry
        )

    def watch(self, num_open: Callable[[], int]) -> None:
        """Read the number of open questions whenever it is asked for."""
        self._open.set_function(num_open)

    def count_request(self, route: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()

    def count_question(self, outcome: str, seconds: float) -> None:
        """Count a question and how long it took."""
        self._questions.labels(outcome).inc()
        self._seconds.observe(seconds)

    def count_feedback(self, kind: str) -> None:
        """Count what somebody said of an answer."""
        self._feedback.labels(kind).inc()

    def text(self) -> bytes:
        """All of them, in Prometheus's format."""
        return prometheus_client.generate_latest(self._registry)
