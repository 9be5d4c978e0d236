"""The part of the standard library that programs may import.

It is loaded once, in the fork server, and shared by every program: there is no file system to import from later. What
is missing here is an ordinary ModuleNotFoundError to a program.
"""

from __future__ import annotations

import importlib

MODULES = tuple(
    """
abc array ast base64 binascii bisect builtins calendar cmath codecs collections collections.abc concurrent.futures
concurrent.futures.thread contextlib contextvars copy copyreg csv ctypes dataclasses datetime decimal difflib dis enum
errno fnmatch fractions functools gc glob graphlib hashlib heapq hmac html html.entities html.parser inspect io
itertools json json.decoder json.encoder keyword linecache locale logging math mmap numbers operator os os.path pathlib
pickle platform pprint queue random re reprlib resource sched secrets select shlex signal socket stat statistics string
struct subprocess sys tempfile textwrap threading time timeit token tokenize traceback types typing unicodedata
urllib.parse uuid warnings weakref xml.etree.ElementTree zlib zoneinfo
_strptime encodings.ascii encodings.idna encodings.latin_1 encodings.punycode encodings.utf_16 encodings.utf_32
encodings.utf_8_sig encodings.unicode_escape encodings.raw_unicode_escape encodings.cp1252 encodings.hex_codec
encodings.base64_codec encodings.rot_13
""".split()  # noqa: SIM905  # a list literal of it would be a hundred lines
)


def preload() -> list[str]:
    """Import everything on the list.

    Returns:
        The modules that this interpreter does not have.
    """
    missing = []
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    return missing
