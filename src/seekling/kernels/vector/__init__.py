"""Loops for the vector units of CPUs, in bfloat16 and float32."""
