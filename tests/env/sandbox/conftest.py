from __future__ import annotations

from collections.abc import Iterator

import pytest

from seekling.config import SandboxConfig
from seekling.env.sandbox import Sandbox
from seekling.errors import SandboxError

LIMITS = SandboxConfig(
    soft_limit_s=0.5, hard_limit_s=1.0, memory_bytes=200 * 1024 * 1024, output_chars=2_000, max_host_calls=20
)


def opened(**settings: object) -> Sandbox:
    try:
        return Sandbox(LIMITS.model_copy(update=settings))
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with opened() as sandbox:
        yield sandbox
