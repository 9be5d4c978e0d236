"""Inner products with many rows, by the library whose threads are at work here already."""

from __future__ import annotations

import sys

import numpy as np


def products(rows_ND: np.ndarray, queries_BD: np.ndarray) -> np.ndarray:
    """(N, B) float32 inner products.

    By torch where something has loaded it, such as the encoder of the queries. numpy's library has threads of its own,
    which wait for more by spinning on the cores that the encoder wants next: a query took 105 ms instead of 7.

    Args:
        rows_ND: float32; of an array that may not be written to, numpy makes the products.
        queries_BD: float32.
    """
    torch = sys.modules.get("torch")
    if torch is None or not rows_ND.flags.writeable:
        return np.asarray(rows_ND @ queries_BD.T)
    found: np.ndarray = torch.mm(torch.from_numpy(rows_ND), torch.from_numpy(queries_BD).T).numpy()
    return found
