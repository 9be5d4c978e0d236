"""Inner products by whichever library is at work."""

import json
import subprocess
import sys

import numpy as np
import pytest

from seekling.retrieval.products import products


def test_products_are_the_same_with_torch_and_without():
    random = np.random.default_rng(0)
    rows_ND, queries_BD = (random.standard_normal((n, 48)).astype(np.float32) for n in (70, 3))
    mapped_ND = rows_ND.copy()
    mapped_ND.flags.writeable = False
    pytest.importorskip("torch")  # loads it
    for rows in (rows_ND, mapped_ND):
        np.testing.assert_allclose(products(rows, queries_BD), rows_ND @ queries_BD.T, rtol=1e-5, atol=1e-5)


def test_torch_is_not_loaded_for_them():
    script = (
        "import json, sys\nimport numpy as np\nfrom seekling.retrieval.products import products\n"
        "found = products(np.eye(3, dtype=np.float32), np.ones((2, 3), np.float32))\n"
        "print(json.dumps([found.tolist(), 'torch' in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[[1.0, 1.0]] * 3, False]
