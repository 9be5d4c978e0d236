"""The keys of a server: several, each with a name, in a file that holds only their hashes.

A running server reads the file again when it changes, so that a key can be given or taken back without a restart. A key
is 256 random bits, so its plain SHA-256 cannot be guessed back.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path

import pydantic

from seekling.errors import ConfigError
from seekling.files import replacing

KEYS = "keys.json"
"""The file of keys in a run folder."""
_PREFIX = "sk-seekling-"


class _Key(pydantic.BaseModel):
    sha256: str
    created: str


_FILE = pydantic.TypeAdapter(dict[str, _Key])


class Keys:
    """Who may ask: the keys of a file, and one that the environment gave.

    Once there was a key, nobody is let in without one, whatever becomes of the file.

    Args:
        path: the file; it need not exist. None: there is none.
        secret: a further key, by the name of "environment"; empty: none.

    Raises:
        ConfigError: the file holds no keys; later too, when it is read again.
    """

    def __init__(self, path: Path | None = None, *, secret: str = "") -> None:
        self._path, self._seen = path, (-1, 0, 0)
        self._given = {"environment": _hash(secret)} if secret else {}
        self._hashes: dict[str, str] = {}
        self._are_needed = False
        self._refresh()

    @property
    def are_needed(self) -> bool:
        """Whether a request must bring one."""
        self._refresh()
        return self._are_needed

    def name_of(self, key: str) -> str | None:
        """The name of a key; None when it is not, or no longer, one of them."""
        self._refresh()
        wanted, found = _hash(key), None
        for name, hashed in self._hashes.items():  # all of them, so that the time tells nothing
            if hmac.compare_digest(hashed, wanted):
                found = name
        return found

    def _refresh(self) -> None:
        try:
            stat = self._path.stat() if self._path is not None else None
        except OSError:
            stat = None
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat is not None else (0, 0, 0)
        if stamp != self._seen:
            stored = _read(self._path) if self._path is not None else {}
            self._hashes = {name: key.sha256 for name, key in stored.items()} | self._given
            self._seen = stamp
            self._are_needed = self._are_needed or bool(self._hashes) or stat is not None


def add_key(path: Path, name: str) -> str:
    """Make a key, and write its hash into the file. The key is not kept: this is the only time that it is seen.

    Raises:
        ConfigError: the name is taken or empty, or the file holds no keys.
    """
    keys = _read(path)
    if not name.strip() or name in keys:
        has = "has" if name in keys else "cannot have"
        raise ConfigError(f"{path} {has} a key named {name!r}; choose another name")
    key = _PREFIX + secrets.token_urlsafe(32)
    keys[name] = _Key(sha256=_hash(key), created=datetime.now(UTC).isoformat(timespec="seconds"))
    _write(path, keys)
    return key


def revoke_key(path: Path, name: str) -> None:
    """Take a key back: a server that is running no longer takes it. A ConfigError where there is none of this name."""
    keys = _read(path)
    if name not in keys:
        raise ConfigError(f"{path} has no key named {name!r}; it has: {', '.join(keys) or 'none'}")
    del keys[name]
    _write(path, keys)


class RateLimit:
    """At most so many requests a minute (0: any number) for each name; a minute's unused ones may come at once."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left: dict[str, tuple[float, float]] = {}

    def wait_s(self, name: str) -> float:
        """Take one request of a name; seconds to wait first when there is none left, and then none is taken."""
        if not self._per_minute:
            return 0.0
        now, full = time.monotonic(), float(self._per_minute)
        left, then = self._left.get(name, (full, now))
        left = min(full, left + (now - then) * full / 60)
        self._left[name] = (left - 1 if left >= 1 else left, now)
        return 0.0 if left >= 1 else (1 - left) * 60 / full


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _read(path: Path) -> dict[str, _Key]:
    try:
        return _FILE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, pydantic.ValidationError) as error:
        raise ConfigError(f"{path} holds no keys ({error}); move it away and add them anew with --add-key") from None


def _write(path: Path, keys: dict[str, _Key]) -> None:
    with replacing(path) as temporary:
        temporary.touch(0o600)
        temporary.write_text(json.dumps({name: key.model_dump() for name, key in keys.items()}, indent=1) + "\n")
