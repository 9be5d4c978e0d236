"""Passages to an index on disk to ranked hits; torch only inside `dense.py`."""
