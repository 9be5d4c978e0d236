"""The programs' side of the sandbox: what runs inside the clean interpreter.

Nothing here may import anything but the standard library, and above all not seekling: the interpreter that runs this
package holds no secret because it never loads the trainer. The host puts this folder's parent on an otherwise empty
search path and imports it under the name `guest`.
"""
