"""The operations that take nearly all the time, each with a reference in torch and what computes it faster beside it.

`slots` attends over the caches of episodes in flight, `strands` over packed rows, with gradients; `linear` multiplies
few rows; `norms` has norms, gates and rotations; `vocabulary` log-probabilities; `draw` draws. `backend` chooses what
computes them, and nothing outside of this room knows which. `vector` and `amx` hold the compiled loops.
"""
