"""A pytest plugin that shows torch one GPU whose tensors lie in ordinary memory, for code that never met a real one.

It holds code to the rules of a GPU: what lies on different devices does not mix, nothing there is numpy's, a recording
takes no value out and copies nothing in, and its replay does the same to the same memory. It computes with the
processor's kernels, so it says nothing about speed, rounding or the GPU's own kernels.

Load it before torch: `python -m pytest -p tests.cuda_on_cpu.plugin`. Needs a C++ compiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FLAGS = ["-std=c++20", "-O0", "-shared", "-fPIC"]


def load_guard() -> None:
    assert "torch" not in sys.modules, "load this plugin before torch; torch looks for a GPU once"
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations
    torch_dir = Path(spec.submodule_search_locations[0])
    source = Path(__file__).with_name("guard.cpp")
    for name in ("libtorch_global_deps.so", "libtorch_cpu.so", "libtorch_cuda.so"):
        if (torch_dir / "lib" / name).exists():  # the last comes with CUDA
            ctypes.CDLL(str(torch_dir / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "guard.so"
        places = [f"-I{torch_dir / 'include'}", f"-L{torch_dir / 'lib'}"]
        command = ["g++", *FLAGS, str(source), "-o", str(library), *places, "-lc10", "-ltorch_cpu"]
        subprocess.run(command, check=True)
        ctypes.CDLL(str(library))


load_guard()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only  # noqa: E402

aten = torch.ops.aten
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
CROSSING = {aten.copy_.default, aten._to_copy.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Take indices from the processor, which they copy."""
VALUES_OUT = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default}
"""Wait for the GPU, since what comes back, or its shape, depends on values."""


class GpuTensor(Tensor):
    """Says that it lies on a GPU; `inner` holds its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> GpuTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=GPU,
        )  # fmt: skip

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"GpuTensor({self.inner})"

    def __reduce_ex__(self, protocol: Any) -> Any:  # a file says where its tensors were; loading says where they go
        return self.inner.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Recording:
    """As `torch.cuda.CUDAGraph`: calls with the very tensors they had, and where their results went."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def pool(self) -> tuple[int, int]:
        return (0, 1)

    def replay(self) -> None:
        assert self.calls, "nothing was recorded"
        with torch.no_grad():
            for func, args, kwargs, kept in self.calls:
                for old, new in zip(kept, tensors_in(func(*args, **kwargs)), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


recording: Recording | None = None


def tensors_in(tree: Any) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]


def is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors, device = tensors_in((args, kwargs)), kwargs.get("device")
    there = [each for each in tensors if isinstance(each, GpuTensor)]
    if not there and not is_gpu(device):
        return func(*args, **kwargs)
    here = [each for each in tensors if not isinstance(each, GpuTensor)]
    leaves = device is not None and not is_gpu(device)
    if recording is not None:
        is_masked = func in INDEXING and any(each.dtype == torch.bool for each in tensors_in(args[1]))
        if func in VALUES_OUT or is_masked:
            raise AssertionError(f"{func} takes a value out of a recording")
        if leaves or any(each.ndim for each in here):
            raise AssertionError(f"{func} copies between devices in a recording")
    if func not in CROSSING | INDEXING and there and any(each.ndim for each in here):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found cuda:0 and cpu")
    if func in INDEXING and not isinstance(args[0], GpuTensor):
        raise RuntimeError(f"{func}: indices should be on the same device as the indexed tensor, cpu")
    inner_args, inner_kwargs = tree_map_only(GpuTensor, lambda each: each.inner, (args, kwargs))
    if device is not None:
        inner_kwargs["device"] = CPU
    found = KERNELS.get(func, func)(*inner_args, **inner_kwargs)
    if recording is not None:
        recording.calls.append((KERNELS.get(func, func), inner_args, inner_kwargs, tensors_in(found)))
    if func is aten.copy_.default and not isinstance(args[0], GpuTensor):
        return args[0]
    if leaves:
        return found
    # A result that an argument was written to is that argument.
    own = {id(inner): outer for outer, inner in zip(tensors, tensors_in((inner_args, inner_kwargs)), strict=True)}
    return tree_map_only(Tensor, lambda each: own[id(each)] if id(each) in own else GpuTensor(each), found)


def flash(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, causal: bool = False, mask: bool = False,
          *, scale: float | None = None) -> tuple[Any, ...]:  # fmt: skip
    check_flash(query, key, value, causal)
    output, logsum = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, scale=scale)
    state = torch.zeros(2, dtype=torch.uint64)
    return output, logsum, None, None, query.shape[2], key.shape[2], state, state[0], None


def flash_backward(d_output: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsum: Tensor,
                   starts_q: None, starts_k: None, max_q: int, max_k: int, dropout: float, causal: bool, *_: Tensor,
                   scale: float | None = None) -> tuple[Tensor, ...]:  # fmt: skip
    check_flash(query, key, value, causal)
    assert starts_q is None
    assert starts_k is None
    assert (max_q, max_k) == (query.shape[2], key.shape[2])
    assert d_output.dtype == output.dtype == query.dtype
    assert d_output.shape == output.shape == query.shape
    assert logsum.shape == query.shape[:3]
    assert logsum.dtype == torch.float32
    assert logsum.is_contiguous()
    heads, group = key.shape[1], query.shape[1] // key.shape[1]
    wide = [each.repeat_interleave(group, 1) for each in (key, value)]
    d_query, *d_wide = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_output, query, *wide, output, logsum, dropout, causal, scale=scale
    )
    return d_query, *(each.unflatten(1, (heads, group)).sum(2) for each in d_wide)


def check_flash(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> None:
    assert query.dtype == key.dtype == value.dtype
    assert query.dtype in (torch.float16, torch.bfloat16)
    assert query.shape[1] % key.shape[1] == 0
    assert key.shape == value.shape
    assert query.shape[3] % 8 == 0
    assert not causal or query.shape[2] == key.shape[2], "kernels differ in which corner they align"


KERNELS = {
    aten._scaled_dot_product_flash_attention.default: flash,
    aten._scaled_dot_product_flash_attention_backward.default: flash_backward,
}


class OnGpu(TorchDispatchMode):
    """What has no tensor to begin with: `torch.zeros(..., device="cuda")`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Names(TorchFunctionMode):
    """Gives "cuda" its number, and refuses what torch refuses before it dispatches."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist and isinstance(args[0], GpuTensor):
            return args[0].cpu().tolist()
        if func in (torch.Tensor.numpy, torch.Tensor.data_ptr) and isinstance(args[0], GpuTensor):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        if func is torch.Tensor.untyped_storage and isinstance(args[0], GpuTensor):
            return args[0].inner.untyped_storage()  # for its address
        if func is torch.device:
            return numbered(func(*args, **(kwargs or {})))
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            places = tree_map_only(list, torch.tensor, args[1], is_leaf=lambda each: isinstance(each, list))
            args = (args[0], places, *args[2:])
        args, kwargs = tree_map(numbered, (args, kwargs or {}))
        if func in (torch.tensor, torch.as_tensor) and is_gpu(kwargs.get("device")):
            return func(*args, **{**kwargs, "device": CPU}).to(GPU)
        return func(*args, **kwargs)


def numbered(each: Any) -> Any:
    is_device = isinstance(each, torch.device | str) and str(each) == "cuda"
    return GPU if is_device else each


class Stream:
    def __init__(self, *_: object, **__: object) -> None: ...
    def wait_stream(self, stream: Stream) -> None: ...
    def synchronize(self) -> None: ...


@contextlib.contextmanager
def record(
    graph: Recording, pool: object = None, stream: object = None, capture_error_mode: str = ""
) -> Iterator[None]:
    global recording
    assert recording is None
    recording = graph
    try:
        yield
    finally:
        recording = None


STANDINS = {
    "is_available": lambda: True, "is_initialized": lambda: True, "device_count": lambda: 1, "_lazy_init": lambda: None,
    "current_device": lambda: 0, "is_bf16_supported": lambda: True, "get_device_capability": lambda _=None: (8, 0),
    "get_device_name": lambda _=None: "emulated", "mem_get_info": lambda _=None: (8 * 2**30, 8 * 2**30),
    "synchronize": lambda _=None: None, "empty_cache": lambda: None, "max_memory_allocated": lambda _=None: 2**30,
    "reset_peak_memory_stats": lambda _=None: None, "manual_seed_all": lambda seed: None,
    "get_rng_state": lambda _=None: torch.zeros(16, dtype=torch.uint8), "set_rng_state": lambda *_: None,
    "Stream": Stream, "current_stream": Stream, "stream": contextlib.nullcontext,
    "CUDAGraph": Recording, "graph": record,
}  # fmt: skip


def enter_modes() -> None:
    OnGpu().__enter__()
    Names().__enter__()


def run_in_modes(thread: threading.Thread, run_thread: Callable[..., None] = threading.Thread.run) -> None:
    enter_modes()  # each thread has its own
    run_thread(thread)


def inference_mode(mode: bool = True) -> Any:
    """Wrappers of tensors know no inference mode."""
    return torch.no_grad() if mode else contextlib.nullcontext()


def load_file(file: Any, map_location: Any = None, load: Callable[..., Any] = torch.load, **settings: Any) -> Any:
    found = load(file, map_location=CPU, **settings)
    return tree_map_only(Tensor, lambda each: each.to(GPU), found) if is_gpu(map_location) else found


torch.load = load_file
torch.inference_mode = inference_mode
for name, standin in STANDINS.items():
    setattr(torch.cuda, name, standin)
threading.Thread.run = run_in_modes  # type: ignore[method-assign]
torch.__future__.set_swap_module_params_on_conversion(True)
enter_modes()
