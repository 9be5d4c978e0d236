"""Compiled loops where their folder cannot be written to."""

import numba

from seekling.compiled import compile_loop


def test_where_nothing_can_be_cached_the_loop_is_compiled_all_the_same(monkeypatch):
    seen = []

    def refuse(*, cache=False, **options):
        seen.append(options)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", refuse)
    assert compile_loop(len, nogil=True) is len
    assert seen == [{"nogil": True}] * 2
