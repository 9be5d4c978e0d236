"""seekling teaches a small language model to search instead of remember."""

import os

__version__ = "0.1.0"

# Read when numpy is loaded, which may be later than this. Threads of its library wait for more by spinning for 2^26
# cycles, on cores that torch or faiss want next: one client of the search server waited 117 ms instead of 25.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
