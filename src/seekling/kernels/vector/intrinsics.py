"""What compiled loops can do and Python cannot: take bits for those of another type, and read ahead.

Global functions, so that loops that call them are found in numba's cache.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

# numba's annotations take the typing context, which compiled loops do not pass, for an argument.
typed_intrinsic: Callable[[Callable[..., object]], Callable[..., Any]] = intrinsic
"""numba's `intrinsic`."""


@typed_intrinsic
def as_float(typing, word):
    """In compiled loops: the fp32 whose bits a uint32 is."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@typed_intrinsic
def as_word(typing, value):
    """In compiled loops: the bits of an fp32, as a uint32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@typed_intrinsic
def fetch(typing, array, start, count):
    """In compiled loops: begin to read elements of a contiguous array, counted flat, into the cache."""

    def generate(context, builder, signature, arguments):
        kind = signature.args[0]
        data = elements(context, builder, kind, arguments[0])
        byte, number, size = ir.IntType(8).as_pointer(), ir.IntType(32), kind.dtype.bitwidth // 8
        call = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], call)
        _, start, count = arguments
        stop, line = builder.add(start, count), count.type(64 // size)  # elements of a line of the cache
        with cgutils.for_range_slice(builder, start, stop, line, start.type) as (index, _):
            address = builder.bitcast(builder.gep(data, [index]), byte)
            builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


def elements(context, builder, kind: types.Array, array: ir.Value) -> ir.Value:
    """Where the elements of an array begin, while an intrinsic is generated."""
    return context.make_array(kind)(context, builder, array).data
