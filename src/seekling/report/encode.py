"""JSON that a browser reads and that nothing in it can end."""

from __future__ import annotations

import json
import math
import re

from seekling.types import Json

# Besides what could end or confuse a script block: lone surrogates, which UTF-8 cannot hold, and the line separators
# that JSON allows in strings.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def encode(value: Json) -> str:
    r"""JSON that is safe inside a script block, whatever strings it holds.

    Example:
        >>> print(encode("</script>"))
        "\u003c/script\u003e"
    """
    try:
        text = _dumps(value)
    except ValueError:
        text = _dumps(finite(value))
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def finite(value: object) -> object:
    """Replace NaN and infinities, which Python's JSON writes and browsers refuse, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value
