"""index.json: what made an index, and whether its files are still the ones that were made.

An index whose encoder, prefixes or corpus changed under it still answers, only wrongly. So everything that decides an
answer is written down here, and whoever opens an index can compare.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import pydantic

from seekling.config import RetrievalConfig
from seekling.errors import IndexMismatchError
from seekling.retrieval.terms import TermRules

RECORD_NAME = "index.json"
FORMAT_VERSION = 3
"""Goes up when the files of an index, the terms, or the way passages are cut change."""

# Hashing every byte of a large index would make opening it slow: of a large file these many blocks are hashed.
_BLOCK_BYTES = 1 << 20
_MAX_BLOCKS = 16
_RARE_SETTINGS = {"entries", "passage_tokenizer", "html", "drop_similar", "language", "stem", "stop_words"}


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class FileRecord(_Part):
    """What one file of an index looked like when it was made."""

    size: int
    digest: str
    """Of all bytes up to 16 MiB, of 16 evenly spaced MiB of a larger file."""


class EncoderRecord(_Part):
    """What turns text into vectors, down to the details that two users of one model often do differently."""

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
    layers: tuple[str, ...] = ()
    """Folders of linear layers after the pooling, in order."""
    probe: tuple[float, ...] = ()
    """Of an endpoint: how the vector of a fixed text begins, which tells when another model answers."""


class Changes(_Part):
    """What an index that was brought up to date has in common with its former state, in pages."""

    kept: int
    changed: int
    added: int
    removed: int


class IndexRecord(_Part):
    """The content of index.json."""

    format: Literal["seekling-index"] = "seekling-index"
    format_version: int = FORMAT_VERSION
    kind: Literal["bm25", "dense", "hybrid"]
    entries: Literal["passages", "titles"] = "passages"
    passage_words: int
    overlap_words: int
    passage_tokenizer: str = ""
    html: Literal["page", "article"] = "page"
    drop_similar: float = 0.0
    language: str = "english"
    stem: bool = True
    stop_words: bool = True
    corpus_hash: str
    """Of the corpus as it was read, pages that `drop_similar` left out included."""
    metadata_hash: str = ""
    """Of its columns."""
    columns: dict[str, int] = {}
    """What a search can be filtered by, besides title and id: in how many documents each has a value."""
    readers: dict[str, str] = {}
    """What parsed the pages; pages that others parsed are parsed again when the index is brought up to date."""
    num_documents: int
    num_dropped: int = 0
    """Pages that `drop_similar` left out; `dropped.jsonl` names them."""
    num_passages: int
    num_terms: int = 0
    """Size of the BM25 vocabulary; 0 for a dense index."""
    terms: dict[str, str] = {}
    """How text becomes BM25 terms; empty for a dense index."""
    encoder: EncoderRecord | None = None
    """None for a BM25 index."""
    vectors: Literal["exact", "compressed"] | None = None
    """How the encoder's vectors are searched; None for a BM25 index."""
    versions: dict[str, str] = {}
    """Packages that made the index; informative, not compared."""
    files: dict[str, FileRecord] = {}
    is_reused: bool = pydantic.Field(default=False, exclude=True)
    """Set by `build_index` when the index was already there; not written to disk."""
    changes: Changes | None = pydantic.Field(default=None, exclude=True)
    """Set by `build_index` when an index was brought up to date; not written to disk."""

    @property
    def config(self) -> RetrievalConfig:
        """The settings that made this index."""
        return RetrievalConfig(
            kind=self.kind,
            encoder=self.encoder.spec if self.encoder else "",
            vectors=self.vectors or "auto",
            entries=self.entries,
            passage_words=self.passage_words,
            overlap_words=self.overlap_words,
            passage_tokenizer=self.passage_tokenizer,
            html=self.html,
            drop_similar=self.drop_similar,
            language=self.language,
            stem=self.stem,
            stop_words=self.stop_words,
        )


def rules_of(config: RetrievalConfig) -> TermRules:
    """How words become BM25's terms.

    Raises:
        ConfigError: the language is not known, or has no stop words.
    """
    return TermRules(config.language, config.stem, config.stop_words)


def read_record(folder: Path) -> IndexRecord:
    """Read index.json.

    Raises:
        IndexMismatchError: there is none, it is damaged, or it was written by another version of the format.
    """
    path = folder / RECORD_NAME
    try:
        text = path.read_text(encoding="utf-8")
        record = IndexRecord.model_validate_json(text)
    except (FileNotFoundError, NotADirectoryError):
        raise IndexMismatchError(
            f"no index at {folder} (there is no {RECORD_NAME}); build one with: seekling index CORPUS --out {folder}"
        ) from None
    except (OSError, UnicodeDecodeError, pydantic.ValidationError) as error:
        raise damaged(folder, f"{RECORD_NAME} cannot be read: {str(error).splitlines()[0]}") from None
    if record.format_version != FORMAT_VERSION:
        raise IndexMismatchError(
            f"{folder} is an index of format version {record.format_version}, this seekling reads {FORMAT_VERSION}; "
            f"rebuild it with: {rebuild_command(folder, record.config)}"
        )
    return record


def write_record(folder: Path, record: IndexRecord) -> None:
    """Write index.json; the last file of a build."""
    (folder / RECORD_NAME).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")


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
        raise damaged(folder, "; ".join(problems), record.config)


def damaged(folder: Path, what: str, config: RetrievalConfig | None = None) -> IndexMismatchError:
    """The error for an index whose files are not what they were."""
    return IndexMismatchError(f"index {folder} is damaged: {what}. Rebuild it with: {rebuild_command(folder, config)}")


def rebuild_command(folder: Path, config: RetrievalConfig | None = None) -> str:
    """The command line that makes the index of a configuration in this folder; without one, by default settings."""
    settings = ""
    if config is not None:
        encoder = f" --encoder {shlex.quote(config.encoder)}" if config.kind != "bm25" else ""
        encoder += f" --vectors {config.vectors}" if config.vectors != "auto" and encoder else ""
        settings = f" --kind {config.kind}{encoder} --passage-words {config.passage_words}"
        settings += f" --overlap-words {config.overlap_words}" + _unusual_settings(config)
    return f"seekling index CORPUS --out {shlex.quote(str(folder))}{settings} --force"


def _unusual_settings(config: RetrievalConfig) -> str:
    """Options for the settings that differ from the defaults; those that nearly nobody changes."""
    usual = RetrievalConfig().model_dump()
    unusual = {name: value for name, value in config.model_dump(include=_RARE_SETTINGS).items() if value != usual[name]}
    return "".join(
        f" --no-{name.replace('_', '-')}"
        if value is False
        else f" --{name.replace('_', '-')} {shlex.quote(str(value))}"
        for name, value in unusual.items()
    )


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
        step = max(size - _BLOCK_BYTES, 0) / (_MAX_BLOCKS - 1)
        starts = (
            [block * _BLOCK_BYTES for block in range(num_blocks)]
            if num_blocks <= _MAX_BLOCKS
            else [int(block * step) for block in range(_MAX_BLOCKS)]
        )
        for start in starts:
            file.seek(start)
            digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def fingerprint_files(paths: Iterable[Path]) -> str:
    """One hash over several files, by name and content."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(paths, key=lambda each: each.name):
        digest.update(f"{path.name}:{fingerprint_file(path)}\n".encode())
    return digest.hexdigest()


def differences(record: IndexRecord, config: RetrievalConfig, *, encoder_fingerprint: str = "") -> list[str]:
    """How an index differs from what a configuration asks for, a phrase per field; empty when it fits.

    Args:
        record: of the index.
        config: its `top_k` is not a property of an index and is not compared.
        encoder_fingerprint: of the files that `config.encoder` stands for. The same files may go by two names, so with
            it the files are compared; without it the names are.
    """
    pairs: list[tuple[str, object, object]] = [
        ("kind", record.kind, config.kind),
        ("entries", record.entries, config.entries),
        ("passage_words", record.passage_words, config.passage_words),
        ("overlap_words", record.overlap_words, config.overlap_words),
        ("passage_tokenizer", record.passage_tokenizer, config.passage_tokenizer),
        ("html", record.html, config.html),
        ("drop_similar", record.drop_similar, config.drop_similar),
    ]
    if record.kind != "dense":
        pairs += [
            ("language", record.language, config.language),
            ("stem", record.stem, config.stem),
            ("stop_words", record.stop_words, config.stop_words),
        ]
    if record.encoder is not None and config.kind != "bm25":
        if not encoder_fingerprint:
            pairs.append(("encoder", record.encoder.spec, config.encoder))
        elif encoder_fingerprint != record.encoder.fingerprint:
            pairs.append(("encoder", record.encoder.spec, f"{config.encoder} (other weights)"))
        if config.vectors != "auto":
            pairs.append(("vectors", record.vectors, config.vectors))
    return [f"{name}: the index has {has!r}, asked for {want!r}" for name, has, want in pairs if has != want]
