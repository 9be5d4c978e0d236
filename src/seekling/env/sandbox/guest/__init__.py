"""The programs' side of the sandbox, inside the clean interpreter, which imports it from this folder as `guest`.

Nothing here imports anything but the standard library: the interpreter holds no secret since it never loads seekling.
"""
