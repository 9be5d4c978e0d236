"""Matrix products in compiled loops on CPUs with tile registers (AMX): sixteen times a vector unit's bfloat16 rate.

A product adds up in four tiles of fp32, "the sums". Its left side is plain rows of bfloat16; its right side holds two
rows in one row of 32-bit words, the even row's number in the lower half, as the processor reads them ("pairs").

Every loop that uses tiles begins with `start_tiles` in each of its threads and ends with `stop_tiles`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target

from seekling.kernels.vector.intrinsics import elements, typed_intrinsic

# Loops in a closure's cache were assembled already; others are when they are compiled.
llvm.initialize_native_asmparser()

SIDE = 32
"""Rows and columns of the square that four tiles make; how far a product adds up in one step."""

TILE_ROWS = 16
_NEEDED = {"+amx-tile", "+amx-bf16", "+avx512f", "+avx512bf16"}
_CONFIG_BYTES, _ROW_BYTES_AT, _ROWS_AT, _ROW_BYTES = 64, 16, 48, 64
_NUM_TILES, _FIRST_RIGHT = 8, 6


@cache
def has_tiles() -> bool:
    """Whether loops may use tiles: on a CPU that has them and a system that lets us."""
    # Of what numba compiles for, which may be told to leave out what the processor has.
    features = cpu_target.target_context.codegen().magic_tuple()[-1].split(",")
    return _NEEDED.issubset(features) and torch.cpu._is_amx_tile_supported() and bool(torch.cpu._init_amx())


@typed_intrinsic
def start_tiles(typing, rows):
    """In compiled loops: before the first product; `rows` of the sums' and the left sides' tiles are used, up to 16."""

    def generate(context, builder, signature, arguments):
        byte = ir.IntType(8)
        config = cgutils.alloca_once(builder, ir.ArrayType(byte, _CONFIG_BYTES))  # type: ignore[no-untyped-call]
        builder.store(ir.Constant(config.type.pointee, None), config)
        start = builder.bitcast(config, byte.as_pointer())

        def put(place: int, value: ir.Value) -> None:
            builder.store(value, builder.gep(start, [ir.Constant(ir.IntType(64), place)]))

        put(0, byte(1))
        for tile in range(_NUM_TILES):
            put(_ROW_BYTES_AT + 2 * tile, byte(_ROW_BYTES))
            few = builder.trunc(arguments[0], byte)
            put(_ROWS_AT + tile, few if tile < _FIRST_RIGHT else byte(TILE_ROWS))
        _run(builder, ["ldtilecfg ($0)"], [start])
        return context.get_dummy_value()

    return types.void(types.intp), generate


def _plain(name: str, lines: Sequence[str], doc: str) -> Callable[..., Any]:
    def define(typing):
        def generate(context, builder, signature, arguments):
            _run(builder, lines, [])
            return context.get_dummy_value()

        return types.void(), generate

    define.__name__, define.__doc__ = name, doc
    return typed_intrinsic(define)


stop_tiles = _plain("stop_tiles", ["tilerelease"], "In compiled loops: after the last product.")
clear_sums = _plain("clear_sums", [f"tilezero %tmm{tile}" for tile in range(4)], "In compiled loops: sums become 0.")


def _mover(name: str, line: str, places: Sequence[tuple[int, int]], doc: str) -> Callable[..., Any]:
    """An intrinsic that moves the four tiles of sums, at (row, column) in tiles, from or to an array."""

    def define(typing, array, start, stride):
        def generate(context, builder, signature, arguments):
            first = _address(context, builder, signature.args[0], arguments[0], arguments[1])
            pointers = [first, _below(builder, first, arguments[2])]
            lines = [
                line.format(tile=f"%tmm{tile}", place=f"{column * _ROW_BYTES}(${row},$2,1)")
                for tile, (row, column) in enumerate(places)
            ]
            _run(builder, lines, [*pointers, arguments[2]])
            return context.get_dummy_value()

        return types.void(array, types.intp, types.intp), generate

    define.__name__, define.__doc__ = name, doc
    return typed_intrinsic(define)


_SQUARE, _STRIPE = [(0, 0), (0, 1), (1, 0), (1, 1)], [(0, 0), (0, 1), (0, 2), (0, 3)]
load_sums = _mover(
    "load_sums", "tileloadd {place}, {tile}", _SQUARE,
    "In compiled loops: the sums become (32, 32) fp32 of an array from a flat place on, its rows so many bytes apart.",
)  # fmt: skip
store_sums = _mover(
    "store_sums", "tilestored {tile}, {place}", _SQUARE, "In compiled loops: the other way of `load_sums`."
)
load_stripe = _mover(
    "load_stripe", "tileloadd {place}, {tile}", _STRIPE, "In compiled loops: as `load_sums`, of `add_stripe`'s."
)
store_stripe = _mover(
    "store_stripe", "tilestored {tile}, {place}", _STRIPE, "In compiled loops: as `store_sums`, of `add_stripe`'s."
)


@typed_intrinsic
def add_product(typing, left, left_start, left_stride, right, right_start, right_stride):
    """In compiled loops: add to the sums (32, 32) bfloat16 times (32, 32), each an array, a flat place, row bytes."""

    def generate(context, builder, signature, arguments):
        left = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        right = _address(context, builder, signature.args[3], arguments[3], arguments[4])
        lines = [
            "tileloadd ($2,$4,1), %tmm6",
            "tileloadd ($0,$3,1), %tmm4",
            "tdpbf16ps %tmm6, %tmm4, %tmm0",
            "tileloadd 64($2,$4,1), %tmm7",
            "tdpbf16ps %tmm7, %tmm4, %tmm1",
            "tileloadd ($1,$3,1), %tmm5",
            "tdpbf16ps %tmm6, %tmm5, %tmm2",
            "tdpbf16ps %tmm7, %tmm5, %tmm3",
        ]
        _run(builder, lines, [left, _below(builder, left, arguments[2]), right, arguments[2], arguments[5]])
        return context.get_dummy_value()

    return types.void(left, types.intp, types.intp, right, types.intp, types.intp), generate


@typed_intrinsic
def add_stripe(typing, left, left_start, left_stride, right, right_start, right_gap, right_stride):
    """In compiled loops: as `add_product`, of few rows on the left and 64 columns on the right.

    Of these, the other 32 begin `right_gap` elements after the first.
    """

    def generate(context, builder, signature, arguments):
        left = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        right, start = arguments[3:5]
        rights = [
            _address(context, builder, signature.args[3], right, place)
            for place in (start, builder.add(start, arguments[5]))
        ]
        lines = ["tileloadd ($0,$3,1), %tmm4"]
        for column in range(4):
            tile = _FIRST_RIGHT + column % 2
            lines.append(f"tileloadd {column % 2 * _ROW_BYTES}(${1 + column // 2},$4,1), %tmm{tile}")
            lines.append(f"tdpbf16ps %tmm{tile}, %tmm4, %tmm{column}")
        _run(builder, lines, [left, *rights, arguments[2], arguments[6]])
        return context.get_dummy_value()

    index = types.intp
    return types.void(left, index, index, right, index, index, index), generate


def _run(builder, lines: Sequence[str], arguments: Sequence[ir.Value]) -> None:
    """Put instructions there; they stay in order, and other reads and writes of memory stay on their side of them."""
    kind = ir.FunctionType(ir.VoidType(), [each.type for each in arguments])
    constraint = ",".join(["r"] * len(arguments) + ["~{memory}"])
    builder.call(ir.InlineAsm(kind, "\n".join(lines), constraint, side_effect=True), arguments)


def _address(context, builder, kind, array, index) -> ir.Value:
    """Of an element of a contiguous array, counted flat."""
    return builder.bitcast(builder.gep(elements(context, builder, kind, array), [index]), ir.IntType(8).as_pointer())


def _below(builder, pointer: ir.Value, stride: ir.Value) -> ir.Value:
    """Of the tile under one."""
    return builder.gep(pointer, [builder.mul(stride, ir.Constant(stride.type, TILE_ROWS))])
