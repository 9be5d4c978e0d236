"""Loops for CPUs with tile registers (AMX), in bfloat16."""
