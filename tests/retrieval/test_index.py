"""Index folders: what they record, what they refuse, and that nothing half-made is ever left."""

import json
import shutil

import pytest

from seekling.config import IndexConfig, Recipe, RetrievalConfig
from seekling.config.recipe import build_recipe
from seekling.corpus.hashing import corpus_hash
from seekling.corpus.readers import read_documents
from seekling.errors import ConfigError, DataError, IndexMismatchError
from seekling.retrieval import build as build_module
from seekling.retrieval.index import build_index, open_index
from seekling.retrieval.index_record import RECORD_NAME, read_record
from seekling.retrieval.library import open_library
from seekling.retrieval.store import DocumentStore, PassageStore
from tests.retrieval.towns import TOWNS, build_towns, config_for, write_corpus, write_tiny_encoder

SETTINGS = IndexConfig(passage_words=12)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus.jsonl")


@pytest.fixture(scope="module")
def hybrid_original(tmp_path_factory, encoder):
    return build_towns(tmp_path_factory.mktemp("built"), "hybrid", encoder)


@pytest.fixture
def hybrid(hybrid_original, tmp_path):
    return shutil.copytree(hybrid_original, tmp_path / "hybrid")


def test_the_record_says_what_made_the_index(corpus, tmp_path, encoder):
    config = config_for("hybrid", encoder, overlap_words=3)
    record = build_index(corpus, tmp_path / "index", config)
    assert record == read_record(tmp_path / "index")
    assert (record.settings.kind, record.settings.passage_words, record.settings.overlap_words) == ("hybrid", 12, 3)
    assert record.corpus_hash == corpus_hash(read_documents(corpus))
    assert record.counts.documents == len(TOWNS) == len(DocumentStore(tmp_path / "index"))
    assert record.counts.passages == len(PassageStore(tmp_path / "index"))
    assert record.terms["stemmer"] == "snowball/english"
    assert record.encoder is not None
    assert (record.encoder.spec, record.encoder.pooling, record.encoder.dimension) == (str(encoder), "mean", 32)
    assert {path.name for path in (tmp_path / "index").iterdir()} == {*record.files, RECORD_NAME}


@pytest.mark.parametrize(
    ("change", "named"),
    [({"passage_words": 20}, "passage_words: the index has 12, asked for 20"), ({"overlap_words": 2}, "overlap_words")],
)
def test_an_index_made_with_other_settings_is_replaced_only_by_force(corpus, tmp_path, change, named):
    out = tmp_path / "index"
    build_index(corpus, out, SETTINGS)
    other = SETTINGS.model_copy(update=change)
    with pytest.raises(IndexMismatchError, match=named) as caught:
        build_index(corpus, out, other)
    assert "--force" in str(caught.value)
    assert read_record(out).settings.passage_words == 12
    assert not build_index(corpus, out, other, force=True).is_reused
    assert read_record(out).settings.passage_words == other.passage_words
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["corpus.jsonl", "index"]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_no_index_is_never_replaced(corpus, tmp_path, force):
    out = tmp_path / "home"
    out.mkdir()
    (out / "letters.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(IndexMismatchError, match="not an index"):
        build_index(corpus, out, SETTINGS, force=force)
    assert (out / "letters.txt").read_text(encoding="utf-8") == "dear"


@pytest.mark.parametrize("force", [False, True])
def test_a_failed_build_leaves_nothing_and_keeps_what_was_there(corpus, tmp_path, monkeypatch, force):
    out = tmp_path / "index"
    if force:
        build_index(corpus, out, SETTINGS)

    def fail(*arguments, **settings):
        raise DataError("row 7")

    monkeypatch.setattr(build_module, "build_bm25", fail)
    with pytest.raises(DataError):
        build_index(corpus, out, SETTINGS, force=force)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["corpus.jsonl", *(["index"] if force else [])]
    if force:
        assert open_index(out).search(["castle"], 1)[0]


def test_a_link_to_an_index_stays_a_link_when_the_index_is_replaced(corpus, tmp_path):
    build_index(corpus, tmp_path / "real", SETTINGS)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    build_index(corpus, tmp_path / "link", SETTINGS.model_copy(update={"passage_words": 30}), force=True)
    assert (tmp_path / "link").is_symlink()
    assert read_record(tmp_path / "real").settings.passage_words == 30


@pytest.mark.parametrize("rows", [[], [("a", "The", "")]])
def test_a_corpus_without_text_is_refused_and_leaves_nothing(tmp_path, rows):
    empty = write_corpus(tmp_path / "empty.jsonl", rows)
    with pytest.raises(DataError):
        build_index(empty, tmp_path / "index", SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.jsonl"]


# --- pitfall 19: an index must refuse to be used as what it is not ---


def test_another_encoder_is_refused_and_the_same_files_elsewhere_are_not(hybrid, encoder, tmp_path):
    other = write_tiny_encoder(tmp_path / "other", seed=1)
    with pytest.raises(IndexMismatchError, match="encoder: the index has"):
        open_index(hybrid, RetrievalConfig(index=config_for("hybrid", other)))
    moved = shutil.copytree(encoder, tmp_path / "moved")
    assert open_index(hybrid, RetrievalConfig(index=config_for("hybrid", moved))).search(["castle"], 2) == open_index(
        hybrid
    ).search(["castle"], 2)


def test_an_encoder_whose_files_changed_since_is_refused(corpus, tmp_path):
    encoder = write_tiny_encoder(tmp_path / "encoder")
    build_index(corpus, tmp_path / "index", config_for("dense", encoder))
    write_tiny_encoder(encoder, seed=5)
    with pytest.raises(IndexMismatchError, match="fingerprint"):
        open_index(tmp_path / "index")


def test_an_index_of_other_term_rules_is_refused(hybrid):
    record = json.loads((hybrid / RECORD_NAME).read_text(encoding="utf-8"))
    record["terms"]["stemmer"] = "snowball/german"
    (hybrid / RECORD_NAME).write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(IndexMismatchError, match="rules for terms"):
        open_index(hybrid)


def test_an_index_of_another_format_version_is_refused(hybrid):
    record = json.loads((hybrid / RECORD_NAME).read_text(encoding="utf-8"))
    (hybrid / RECORD_NAME).write_text(json.dumps({**record, "format_version": 0}), encoding="utf-8")
    with pytest.raises(IndexMismatchError, match="format version 0"):
        open_index(hybrid)


def test_settings_of_earlier_versions_are_passed_over_at_their_defaults_and_refused_otherwise(hybrid, encoder):
    record = json.loads((hybrid / RECORD_NAME).read_text(encoding="utf-8"))
    for share in (0.0, 0.9):
        settings = {**record["settings"], "drop_similar": share, "passage_tokenizer": ""}
        (hybrid / RECORD_NAME).write_text(json.dumps({**record, "settings": settings}), encoding="utf-8")
        if not share:
            open_index(hybrid, RetrievalConfig(index=config_for("hybrid", encoder)))
    with pytest.raises(IndexMismatchError, match="cannot be read"):
        open_index(hybrid)
    assert build_recipe({"env": {"sandbox": {"backend": "zygote"}}}) == Recipe()
    with pytest.raises(ConfigError, match=r"env\.sandbox\.backend: no such setting"):
        build_recipe({"env": {"sandbox": {"backend": "monty"}}})


# --- damage ---


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "something else"}', "\x00\x01"])
def test_a_damaged_record_is_an_error_that_says_so(hybrid, content):
    (hybrid / RECORD_NAME).write_text(content, encoding="utf-8")
    with pytest.raises(IndexMismatchError, match=r"index\.json cannot be read.*seekling index"):
        open_index(hybrid)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.touch()])
def test_a_folder_without_an_index_is_an_error_that_names_the_command(tmp_path, make):
    make(tmp_path / "nothing")
    with pytest.raises(IndexMismatchError, match=r"no index at .*seekling index CORPUS --out"):
        open_index(tmp_path / "nothing")


@pytest.mark.parametrize("damage", [cut_short, flip_a_byte, empty, lambda path: path.unlink()])
def test_every_damaged_file_is_named_with_the_command_that_rebuilds(hybrid, encoder, damage):
    for name in read_record(hybrid).files:
        whole = (hybrid / name).read_bytes()
        damage(hybrid / name)
        for opened in (open_index, open_library):
            with pytest.raises(IndexMismatchError, match=name) as caught:
                opened(hybrid)
            assert f"seekling index CORPUS --out {hybrid} --kind hybrid --encoder {encoder}" in str(caught.value)
        (hybrid / name).write_bytes(whole)
