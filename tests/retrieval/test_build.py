"""Building an index again, after an interruption, on a full disk, in other languages."""

import errno
import json
import os
import signal
import subprocess
import sys

import pytest

from seekling.config import IndexConfig, RetrievalConfig
from seekling.corpus import readers
from seekling.errors import ConfigError, DataError, IndexMismatchError, InfrastructureError
from seekling.retrieval import build as build_module
from seekling.retrieval.index import build_index, open_index
from seekling.retrieval.index_record import read_record
from seekling.retrieval.local_models import LocalEncoder
from seekling.retrieval.store import DocumentStore
from seekling.retrieval.terms import TermMaker, TermRules
from tests.retrieval.towns import TOWNS, config_for, write_corpus, write_tiny_encoder

SETTINGS = IndexConfig(passage_words=12)


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for name, title, text in TOWNS:
        (folder / f"{name.replace(':', '-')}.md").write_text(f"# {title}\n\n{text}", encoding="utf-8")
    return folder


@pytest.fixture
def parsed(monkeypatch):
    """Names of the pages that were parsed, in order."""
    names: list[str] = []
    parse = readers._parse_page

    def spy(path, *rest):
        names.append(path.stem)
        return parse(path, *rest)

    monkeypatch.setattr(readers, "_parse_page", spy)
    return names


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def left_beside(folder):
    return sorted(path.name for path in folder.parent.iterdir() if path.name.startswith("."))


# --- incremental ---


def test_an_update_parses_only_what_changed_and_equals_a_new_build(notes, tmp_path, parsed):
    out = tmp_path / "index"
    build_index(notes, out, SETTINGS)
    (notes / "bergen.md").write_text("# Bergen\n\nIt rains.", encoding="utf-8")
    (notes / "delft.md").unlink()
    (notes / "new.md").write_text("# New\n\nAnother page.", encoding="utf-8")
    os.utime(notes / "cahors.md", (0, 0))
    parsed.clear()
    record = build_index(notes, out, SETTINGS, update=True)
    assert set(parsed) == {"bergen", "new"}
    assert record.changes is not None
    assert record.changes.model_dump() == {"kept": 4, "changed": 1, "added": 1, "removed": 1}
    build_index(notes, tmp_path / "fresh", SETTINGS)
    assert files_of(out) == files_of(tmp_path / "fresh")
    assert left_beside(out) == []


def test_an_update_where_there_is_no_index_builds_one_and_refuses_other_settings(notes, tmp_path):
    out = tmp_path / "index"
    assert not build_index(notes, out, SETTINGS, update=True).is_reused
    with pytest.raises(IndexMismatchError, match="passage_words"):
        build_index(notes, out, IndexConfig(passage_words=20), update=True)


def test_a_changed_column_is_a_changed_corpus(tmp_path):
    corpus, out = tmp_path / "c.jsonl", tmp_path / "index"
    row = {"id": "1", "title": "T", "content": "castle", "year": 1990}
    corpus.write_text(json.dumps(row), encoding="utf-8")
    build_index(corpus, out, SETTINGS)
    corpus.write_text(json.dumps({**row, "year": 1991}), encoding="utf-8")
    with pytest.raises(IndexMismatchError, match="only columns besides title and content differ"):
        build_index(corpus, out, SETTINGS)
    build_index(corpus, out, SETTINGS, update=True)
    assert dict(DocumentStore(out).find("1").metadata) == {"year": "1991"}


# --- interruptions ---


@pytest.mark.parametrize("error", [KeyboardInterrupt, InfrastructureError])
def test_an_interrupted_build_leaves_no_index_and_the_next_one_is_whole(notes, tmp_path, monkeypatch, error):
    out, cut = tmp_path / "index", build_module.cut_passages

    def stop_at_delft(document, **settings):
        if document.id == "delft":
            raise error
        return cut(document, **settings)

    monkeypatch.setattr(build_module, "cut_passages", stop_at_delft)
    with pytest.raises(error):
        build_index(notes, out, SETTINGS)
    assert left_beside(out) == [".index.building"]
    assert not out.exists()
    monkeypatch.setattr(build_module, "cut_passages", cut)
    build_index(notes, out, SETTINGS)
    assert left_beside(out) == []
    build_index(notes, tmp_path / "fresh", SETTINGS)
    assert files_of(out) == files_of(tmp_path / "fresh")


def test_passages_that_were_encoded_are_not_encoded_again(tmp_path, monkeypatch):
    config = config_for("dense", write_tiny_encoder(tmp_path / "encoder"))
    corpus = write_corpus(tmp_path / "c.jsonl")
    from seekling.retrieval import dense

    monkeypatch.setattr(dense, "_SORTED_TEXTS", 2)

    def stop(stage, done, total):
        if stage == "encode" and done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(corpus, tmp_path / "index", config, progress=stop)
    seen = []
    build_index(corpus, tmp_path / "index", config, progress=lambda *update: seen.append(update))
    assert next(done for stage, done, _ in seen if stage == "encode") == 6
    build_index(corpus, tmp_path / "fresh", config)
    assert files_of(tmp_path / "index") == files_of(tmp_path / "fresh")


@pytest.mark.parametrize("vectors", ["exact", "compressed"])
def test_an_update_encodes_only_passages_that_are_new(tmp_path, monkeypatch, vectors):
    if vectors == "compressed":
        pytest.importorskip("faiss", reason="needs the extra big")
    config = config_for("dense", write_tiny_encoder(tmp_path / "encoder"), vectors=vectors)
    rows = [*TOWNS, *((f"p{n}", f"Page {n}", f"castle number {n}") for n in range(60))]
    corpus = write_corpus(tmp_path / "c.jsonl", rows)
    build_index(corpus, tmp_path / "index", config)
    write_corpus(corpus, [("new", "New", "A new harbour."), *reversed(rows[1:])])
    encoded = []
    encode = LocalEncoder.passages

    def spy(self, texts):
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(LocalEncoder, "passages", spy)
    build_index(corpus, tmp_path / "index", config, update=True)
    assert encoded == ["New\nA new harbour."]
    build_index(corpus, tmp_path / "fresh", config)
    updated, fresh = (open_index(tmp_path / name).search(["harbour", "castle 7"], 5) for name in ("index", "fresh"))
    for hits, wanted in zip(updated, fresh, strict=True):
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in wanted], abs=2e-3)


KILLED = """
import os, signal, sys, time
from seekling.config import IndexConfig, RetrievalConfig
from seekling.retrieval import build
from seekling.retrieval.index import build_index
cut = build.cut_passages
def cut_slowly(document, **settings):
    if document.id == "evora":
        print("here", flush=True)
        time.sleep(60)
    return cut(document, **settings)
build.cut_passages = cut_slowly
build_index(sys.argv[1], sys.argv[2], IndexConfig(passage_words=12), force=True)
"""


@pytest.mark.parametrize("is_replacing", [False, True])
def test_kill_9_leaves_the_old_index_and_the_next_build_goes_on(notes, tmp_path, is_replacing):
    out = tmp_path / "index"
    if is_replacing:
        build_index(notes, out, SETTINGS)
        before = files_of(out)
    child = subprocess.Popen([sys.executable, "-c", KILLED, notes, out], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    with pytest.raises(IndexMismatchError, match="another process is building"):
        build_index(notes, out, SETTINGS, force=True)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert left_beside(out) == [".index.building"]
    if is_replacing:
        assert files_of(out) == before
        assert open_index(out).search(["castle"], 1)[0]
    else:
        with pytest.raises(IndexMismatchError, match="no index at"):
            open_index(out)
    build_index(notes, out, SETTINGS, force=True)
    assert left_beside(out) == []
    assert open_index(out).search(["castle"], 1)[0][0].passage.document_id == "alnwick"


def test_an_index_whose_replacing_was_cut_between_the_renames_comes_back(notes, tmp_path):
    out = tmp_path / "index"
    build_index(notes, out, SETTINGS)
    out.rename(tmp_path / ".index.old")
    assert build_index(notes, out, SETTINGS).is_reused
    assert left_beside(out) == []


def test_an_old_index_that_cannot_be_removed_does_not_make_a_finished_build_fail(notes, tmp_path, monkeypatch, caplog):
    """As on a network disk, where the files that a search server holds open keep their folder."""
    out = tmp_path / "index"
    build_index(notes, out, SETTINGS)

    def busy(*_, **__):
        raise OSError(errno.EBUSY, "Device or resource busy")

    for number in range(2):
        (notes / f"new{number}.md").write_text(f"# New\nzeppelin{number}", encoding="utf-8")
        monkeypatch.setattr(os, "rmdir", busy)
        build_index(notes, out, SETTINGS, update=True)
        monkeypatch.undo()
        assert open_index(out).search([f"zeppelin{number}"], 1)[0]
    assert len([name for name in left_beside(out) if name.startswith(".index.old")]) == 2
    assert caplog.text.count("could not be removed whole; remove that folder") == 2
    assert build_index(notes, out, SETTINGS).is_reused
    assert left_beside(out) == []


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("num_pages", [6000, 3000, 2200])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, small_disk, num_pages):
    """The most pages fill the disk with their texts, fewer with postings, the fewest with arrays, which are mapped."""
    rows = [
        (str(n), f"P{n}", " ".join(f"{chr(97 + j)}{(n * 7 + j) % 10}" for j in range(12))) for n in range(num_pages)
    ]
    corpus = write_corpus(tmp_path / "c.jsonl", rows)
    with pytest.raises(DataError, match=r"cannot write the index .*(No space left|requested and)"):
        build_index(corpus, small_disk / "index", SETTINGS)
    assert list(small_disk.iterdir()) == []


# --- BM25's language ---


@pytest.mark.parametrize(
    ("rules", "text", "terms"),
    [
        (TermRules(), "The painters painted", ["painter", "paint"]),
        (TermRules(stem=False), "The painters painted", ["painters", "painted"]),
        (TermRules(stop_words=False), "The painters", ["the", "painter"]),
        (TermRules("german"), "Die H\u00e4user der Stadt", ["haus", "stadt"]),
        (TermRules("french"), "Les ch\u00e2teaux mang\u00e9s", ["chateau", "mang"]),
        (TermRules("finnish", stop_words=False), "talossa", ["talo"]),
    ],
)
def test_terms_follow_the_rules_of_their_language(rules, text, terms):
    assert TermMaker(rules).terms(text) == terms


def test_a_language_without_stop_words_is_refused_unless_they_are_switched_off(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl")
    with pytest.raises(ConfigError, match=r"no stop words for 'finnish'.*--no-stop-words"):
        build_index(corpus, tmp_path / "index", SETTINGS.model_copy(update={"language": "finnish"}))
    config = SETTINGS.model_copy(update={"language": "finnish", "stop_words": False})
    build_index(corpus, tmp_path / "index", config)
    assert read_record(tmp_path / "index").settings == config
    with pytest.raises(IndexMismatchError) as caught:
        open_index(tmp_path / "index", RetrievalConfig(index=SETTINGS))
    assert "language: the index has 'finnish', asked for 'english'" in str(caught.value)
