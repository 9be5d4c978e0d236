"""index.json: what made an index, and whether its files are still the ones that were made.

An index whose encoder, prefixes or corpus changed under it still answers, only wrongly: what decides an answer is
written down here, and whoever opens an index can compare.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Literal

import pydantic

from seekling.config import IndexConfig
from seekling.config.base import Section
from seekling.errors import IndexMismatchError
from seekling.retrieval.terms import TermRules

RECORD_NAME = "index.json"
FORMAT_VERSION = 4
"""Goes up when the record or the files of an index, the terms, or the way passages are cut change."""

# Hashing every byte of a large index would make opening it slow: of a large file these many blocks are hashed.
_BLOCK_BYTES = 1 << 20
_MAX_BLOCKS = 16
_OF_VECTORS, _OF_TERMS = {"encoder", "vectors"}, {"language", "stem", "stop_words"}
"""Settings that only an index with vectors has, and those that only one with terms has."""


class FileRecord(Section):
    """What one file of an index looked like when it was made."""

    size: int
    digest: str
    """Of all bytes up to 16 MiB, of 16 evenly spaced MiB of a larger file."""


class EncoderRecord(Section):
    """What turns text into vectors, down to the details that two users of one model often do differently."""

    former: ClassVar[Mapping[str, object]] = {"layers": []}

    spec: str
    fingerprint: str
    """Hash over the model's configuration, tokenizer and weights."""
    pooling: Literal["mean", "cls", "max", "lasttoken", "endpoint"]
    """endpoint: a server makes the vectors, by its own rules."""
    query_prefix: str
    passage_prefix: str
    dimension: int
    max_tokens: int
    """0 for an endpoint: it cuts, or refuses, what is too long."""
    probe: tuple[float, ...] = ()
    """Of an endpoint: how the vector of a fixed text begins, which tells when another model answers."""


class Changes(Section):
    """What an index that was brought up to date has in common with its former state, in pages."""

    kept: int
    changed: int
    added: int
    removed: int


class Counts(Section):
    """How much an index holds."""

    former: ClassVar[Mapping[str, object]] = {"dropped": 0}

    documents: int
    passages: int
    terms: int = 0
    """Size of the BM25 vocabulary; 0 for a dense index."""


class IndexRecord(Section, pydantic.BaseModel):
    """The content of index.json."""

    format: Literal["seekling-index"] = "seekling-index"
    format_version: int = FORMAT_VERSION
    settings: IndexConfig
    """What was asked for; of `vectors`, what "auto" came to."""
    counts: Counts
    corpus_hash: str
    """Of the corpus as it was read."""
    metadata_hash: str = ""
    """Of its columns."""
    columns: dict[str, int] = {}
    """What documents have besides title and id: in how many of them each has a value."""
    left_out: tuple[str, ...] = ()
    """Files of the corpus that could not be read, with the reason."""
    readers: dict[str, str] = {}
    """What parsed the pages; pages that others parsed are parsed again when the index is brought up to date."""
    terms: dict[str, str] = {}
    """How text becomes BM25 terms; empty for a dense index."""
    encoder: EncoderRecord | None = None
    """None for a BM25 index."""
    versions: dict[str, str] = {}
    """Packages that made the index; informative, not compared."""
    files: dict[str, FileRecord] = {}
    is_reused: bool = pydantic.Field(default=False, exclude=True)
    """Set by `build_index` when the index was already there; not written to disk."""
    changes: Changes | None = pydantic.Field(default=None, exclude=True)
    """Set by `build_index` when an index was brought up to date; not written to disk."""


def rules_of(config: IndexConfig) -> TermRules:
    """How words become BM25's terms; a ConfigError when the language is not known, or has no stop words."""
    return TermRules(config.language, config.stem, config.stop_words)


def read_record(folder: Path) -> IndexRecord:
    """Read index.json.

    Raises:
        IndexMismatchError: there is none, it is damaged, or it was written by another version of the format.
    """
    path = folder / RECORD_NAME
    try:
        text = path.read_text(encoding="utf-8")
        row = json.loads(text)
        version = row.get("format_version") if isinstance(row, dict) else None
        if isinstance(version, int) and version != FORMAT_VERSION:
            raise IndexMismatchError(
                f"{folder} is an index of format version {version}, this seekling reads {FORMAT_VERSION}; rebuild it "
                f"with its settings, which {path} names: {rebuild_command(folder)}"
            )
        return IndexRecord.model_validate_json(text)
    except (FileNotFoundError, NotADirectoryError):
        raise IndexMismatchError(
            f"no index at {folder} (there is no {RECORD_NAME}); build one with: seekling index CORPUS --out {folder}"
        ) from None
    except (OSError, ValueError) as error:
        raise damaged(folder, f"{RECORD_NAME} cannot be read: {str(error).splitlines()[0]}") from None


def check_files(folder: Path, record: IndexRecord) -> None:
    """Compare the files of an index with its record.

    Raises:
        IndexMismatchError: a file is missing, has another size or another content; all of them are named.
    """
    problems = []
    for name, expected in record.files.items():
        try:
            size = (folder / name).stat().st_size
            if size != expected.size:
                problems.append(f"{name} has {size} bytes instead of {expected.size}")
            elif fingerprint_file(folder / name) != expected.digest:
                problems.append(f"{name} has other content than when it was made")
        except FileNotFoundError:
            problems.append(f"{name} is missing")
        except OSError as error:
            problems.append(f"{name} cannot be read ({error.strerror})")
    if problems:
        raise damaged(folder, "; ".join(problems), record.settings)


def damaged(folder: Path, what: str, config: IndexConfig | None = None) -> IndexMismatchError:
    """The error for an index whose files are not what they were."""
    return IndexMismatchError(f"index {folder} is damaged: {what}. Rebuild it with: {rebuild_command(folder, config)}")


def rebuild_command(folder: Path, config: IndexConfig | None = None) -> str:
    """The command line that makes the index of a configuration in this folder; without one, by default settings."""
    usual, options = IndexConfig().model_dump(), ""
    for name, value in config.model_dump(exclude=_unread(config.kind)).items() if config is not None else ():
        option = name.replace("_", "-")
        if value != usual[name] or name == "kind":
            options += f" --no-{option}" if value is False else f" --{option} {shlex.quote(str(value))}"
    return f"seekling index CORPUS --out {shlex.quote(str(folder))}{options} --force"


def _unread(kind: str) -> set[str]:
    """The settings that an index of a kind does not read."""
    return _OF_VECTORS if kind == "bm25" else _OF_TERMS if kind == "dense" else set()


def describe_files(folder: Path) -> dict[str, FileRecord]:
    """A `FileRecord` for every file in a folder."""
    return {
        path.name: FileRecord(size=path.stat().st_size, digest=fingerprint_file(path))
        for path in sorted(folder.iterdir())
    }


def fingerprint_file(path: Path) -> str:
    """A hash of a file's size and bytes, or of evenly spaced blocks of it where it is large."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        num_blocks = -(-size // _BLOCK_BYTES)
        is_large = num_blocks > _MAX_BLOCKS
        step = (size - _BLOCK_BYTES) / (_MAX_BLOCKS - 1) if is_large else _BLOCK_BYTES
        for block in range(min(num_blocks, _MAX_BLOCKS)):
            file.seek(int(block * step))
            digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def fingerprint_files(paths: Iterable[Path]) -> str:
    """One hash over several files, by name and content."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(paths, key=lambda each: each.name):
        digest.update(f"{path.name}:{fingerprint_file(path)}\n".encode())
    return digest.hexdigest()


def differences(record: IndexRecord, config: IndexConfig, *, encoder_fingerprint: str = "") -> list[str]:
    """How an index differs from what a configuration asks for, a phrase per field; empty when it fits.

    The same files of an encoder may go by two names, so with their fingerprint they are compared, without it the names.
    """
    has, asked = record.settings.model_dump(), config.model_dump()
    unread = _unread(record.settings.kind) | (_OF_VECTORS if config.kind == "bm25" else set())
    unread |= {"vectors"} if config.vectors == "auto" else set()
    unread |= set() if record.left_out else {"skip_unreadable"}
    if record.encoder is not None and encoder_fingerprint:
        is_same = encoder_fingerprint == record.encoder.fingerprint
        asked["encoder"] = has["encoder"] if is_same else f"{config.encoder} (other weights)"
    return [
        f"{name}: the index has {value!r}, asked for {asked[name]!r}"
        for name, value in has.items()
        if name not in unread and value != asked[name]
    ]
