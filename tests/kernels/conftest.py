"""Every back end that this machine has, one after the other."""

from __future__ import annotations

import pytest

from seekling.kernels.backend import available_kernels, use_kernels


@pytest.fixture(scope="module", params=["reference", "vector", "amx"])
def kernels(request):
    if request.param not in available_kernels():
        pytest.skip(f"this machine has no {request.param} kernels")
    yield use_kernels(request.param)
    use_kernels("auto")
