"""Rows of a softmax, 16 fp32 at a time, in compiled loops on CPUs that have tiles.

LLVM's own vectors hold half as many, and it uses neither the instruction that rounds to bfloat16 nor the one that
scales by a power of two. Rows are whole multiples of 32 elements of contiguous arrays, counted flat.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types

from seekling.kernels.vector.intrinsics import elements, typed_intrinsic

LOW = -1e30
"""For a score that counts as none: its exponential is 0, whatever reasonable factor it had."""

_LANES = 16
_FLOATS, _WORDS, _HALVES = (ir.VectorType(kind, _LANES) for kind in (ir.FloatType(), ir.IntType(32), ir.IntType(16)))
_POLYNOMIAL = (0.00133999444, 0.00961817028, 0.0555033415, 0.240226462, 0.693147182, 1.0)
_CURRENT_ROUNDING = 4


@typed_intrinsic
def row_maximum(typing, scores, start, count):
    """In compiled loops: the largest of so many fp32."""

    def generate(context, builder, signature, arguments):
        data, [start, count] = _data(context, builder, signature, arguments, 0), arguments[1:]
        largest = [_variable(builder, _constant(LOW)) for _ in range(2)]
        with cgutils.for_range_slice(builder, start, builder.add(start, count), start.type(32), start.type) as (at, _):
            for part, place in enumerate(largest):
                value = _load(builder, data, at, part)
                before = builder.load(place)
                builder.store(builder.select(builder.fcmp_ordered(">", value, before), value, before), place)
        both = [builder.load(place) for place in largest]
        highest = builder.select(builder.fcmp_ordered(">", *both), *both)
        return _call(builder, "llvm.vector.reduce.fmax.v16f32", ir.FloatType(), [highest], ["nnan"])

    return types.float32(scores, types.intp, types.intp), generate


@typed_intrinsic
def row_powers(typing, scores, start, weights, place, count, factor, offset):
    """In compiled loops: write 2 ** (score * factor - offset) as bfloat16, and return their sum before rounding."""

    def generate(context, builder, signature, arguments):
        scores, weights = (_data(context, builder, signature, arguments, number) for number in (0, 2))
        _, start, _, place, count, factor, offset = arguments
        factor, offset = _splat(builder, factor), _splat(builder, builder.fneg(offset))
        totals = [_variable(builder, _constant(0.0)) for _ in range(2)]
        with cgutils.for_range_slice(builder, count.type(0), count, count.type(32), count.type) as (at, _):
            for part, total in enumerate(totals):
                score = _load(builder, scores, builder.add(start, at), part)
                power = _power_of_two(builder, _fma(builder, score, factor, offset))
                builder.store(builder.fadd(builder.load(total), power), total)
                _store(builder, _to_bfloat16(builder, power), weights, builder.add(place, at), part)
        both = builder.fadd(*(builder.load(total) for total in totals))
        zero = ir.Constant(ir.FloatType(), 0.0)
        return _call(builder, "llvm.vector.reduce.fadd.v16f32", ir.FloatType(), [zero, both], ["reassoc"])

    index, real = types.intp, types.float32
    return real(scores, index, weights, index, index, real, real), generate


@typed_intrinsic
def pair_gradients(
    typing, scores, d_weights, start, stride, weight_pairs, d_score_pairs, place, d_scores, count, factor, scaling,
    logsum, delta, row
):  # fmt: skip
    """In compiled loops: from two rows of scores and of weights' gradients to weights and scores' gradients.

    The rows begin at `start` and `start + stride` of `scores` and `d_weights`, and are `row` and the next of `logsum`
    and `delta`. A weight is 2 ** (score * factor - logsum); a score's gradient the weight times `scaling` times its
    gradient less `delta`. Pairs of weights, the first row's in the lower halves, go into `weight_pairs` from `place`
    on, pairs of gradients into `d_score_pairs`; gradients also, row by row, to the scores' places in `d_scores`.
    """

    def generate(context, builder, signature, arguments):
        numbers = (0, 1, 4, 5, 7, 11, 12)
        scores, d_weights, weight_pairs, d_score_pairs, d_scores, logsum, delta = (
            _data(context, builder, signature, arguments, number) for number in numbers
        )
        start, stride, place, count, row = (arguments[number] for number in (2, 3, 6, 8, 13))
        factor, scaling = (_splat(builder, arguments[number]) for number in (9, 10))
        rows = [row, builder.add(row, row.type(1))]
        logsums, deltas = (
            [_splat(builder, builder.fneg(builder.load(builder.gep(each, [number])))) for number in rows]
            for each in (logsum, delta)
        )
        starts = [start, builder.add(start, stride)]
        with cgutils.for_range_slice(builder, count.type(0), count, count.type(_LANES), count.type) as (at, _):
            weights, gradients = [], []
            for first, its_logsum, its_delta in zip(starts, logsums, deltas, strict=True):
                here = builder.add(first, at)
                weight = _power_of_two(builder, _fma(builder, _load(builder, scores, here), factor, its_logsum))
                d_weight = builder.fadd(_load(builder, d_weights, here), its_delta)
                gradient = _to_bfloat16(builder, builder.fmul(builder.fmul(weight, scaling), d_weight))
                _store(builder, gradient, d_scores, here)
                weights.append(_to_bfloat16(builder, weight))
                gradients.append(gradient)
            there = builder.add(place, at)
            _store(builder, _pair(builder, *weights), weight_pairs, there)
            _store(builder, _pair(builder, *gradients), d_score_pairs, there)
        return context.get_dummy_value()

    index, real = types.intp, types.float32
    kinds = (scores, d_weights, index, index, weight_pairs, d_score_pairs, index, d_scores, index, real, real)
    return types.void(*kinds, logsum, delta, index), generate


def _data(context, builder, signature, arguments, number: int) -> ir.Value:
    """Of an array among the arguments, where its elements begin."""
    return elements(context, builder, signature.args[number], arguments[number])


def _vector_at(builder, data: ir.Value, at: ir.Value, part: int, kind: ir.Type) -> ir.Value:
    element = builder.gep(data, [builder.add(at, at.type(part * _LANES))])
    return builder.bitcast(element, kind.as_pointer())


def _load(builder, data: ir.Value, at: ir.Value, part: int = 0) -> ir.Value:
    return builder.load(_vector_at(builder, data, at, part, _FLOATS), align=4)


def _store(builder, value: ir.Value, data: ir.Value, at: ir.Value, part: int = 0) -> None:
    builder.store(value, _vector_at(builder, data, at, part, value.type), align=2)


def _splat(builder, scalar: ir.Value) -> ir.Value:
    zeros = ir.Constant(_WORDS, None)
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(undefined, scalar, ir.IntType(32)(0)), undefined, zeros)


def _power_of_two(builder, exponent: ir.Value) -> ir.Value:
    """2^x to 2e-7; 0 where x is very low."""
    whole = _call(builder, "llvm.rint.v16f32", _FLOATS, [exponent])
    rest = builder.fsub(exponent, whole)
    value = _constant(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        value = _fma(builder, value, rest, _constant(coefficient))
    everywhere, mode = ir.IntType(16)(-1), ir.IntType(32)(_CURRENT_ROUNDING)
    scale = "llvm.x86.avx512.mask.scalef.ps.512"
    return _call(builder, scale, _FLOATS, [value, whole, value, everywhere, mode])


def _fma(builder, factor: ir.Value, other: ir.Value, addend: ir.Value) -> ir.Value:
    return _call(builder, "llvm.fma.v16f32", _FLOATS, [factor, other, addend])


def _to_bfloat16(builder, value: ir.Value) -> ir.Value:
    """(16 halves): rounded to nearest, ties to even."""
    kind = ir.FunctionType(_HALVES, [_FLOATS])
    return builder.call(ir.InlineAsm(kind, "vcvtneps2bf16 $1, $0", "=v,v", side_effect=False), [value])


def _pair(builder, even: ir.Value, odd: ir.Value) -> ir.Value:
    shift = ir.Constant(_WORDS, [16] * _LANES)
    return builder.or_(builder.zext(even, _WORDS), builder.shl(builder.zext(odd, _WORDS), shift))


def _variable(builder, value: ir.Value) -> ir.Value:
    place: ir.Value = cgutils.alloca_once_value(builder, value)  # type: ignore[no-untyped-call]
    return place


def _constant(number: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [number] * _LANES)


def _call(
    builder, name: str, returned: ir.Type, arguments: Sequence[ir.Value], fastmath: Sequence[str] = ()
) -> ir.Value:
    kind = ir.FunctionType(returned, [each.type for each in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(function, arguments, fastmath=fastmath)
