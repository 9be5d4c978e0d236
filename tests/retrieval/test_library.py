"""The library that an agent sees: pages, sections, and errors that help it on."""

import numpy as np
import pytest

from seekling.config import IndexConfig, RetrievalConfig
from seekling.errors import ConfigError, IndexMismatchError, ToolError
from seekling.retrieval.encoders import describe_encoder, load_encoder
from seekling.retrieval.index import build_index
from seekling.retrieval.index_record import rebuild_command
from seekling.retrieval.library import open_library
from seekling.retrieval.vectors import StoredVectors
from tests.retrieval.towns import TOWNS, write_corpus, write_tiny_encoder
from tests.settings import recipe_of

FOWEY = TOWNS[-1][2]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    build_index(write_corpus(folder / "corpus.jsonl"), folder / "index", IndexConfig(passage_words=12))
    return open_library(folder / "index")


def test_search_pages_gives_each_page_once_best_first(library):
    pages = library.search_pages("harbour town sailors", 10)
    assert pages[0] == {"page_id": "bergen", "title": "Bergen"}
    assert len({page["page_id"] for page in pages}) == len(pages)


def test_search_pages_puts_the_page_with_that_title_first(tmp_path):
    rows = [
        ("ship", "Anna Berg of Ta", "Anna Berg sailed the Anna Berg. Anna Berg!"),
        ("hall", "Hall", "Anna Berg Hall is named after Anna Berg."),
        ("her", "Anna Berg", "A long life in another town, told at length, and far away from here. " * 3),
    ]
    build_index(write_corpus(tmp_path / "c.jsonl", rows), tmp_path / "index", IndexConfig(passage_words=40))
    named = open_library(tmp_path / "index")
    assert named.search("Anna Berg", 1)[0].passage.document_id == "ship"
    assert [page["page_id"] for page in named.search_pages(" anna BERG ")] == ["her", "ship", "hall"]
    assert [page["page_id"] for page in named.search_pages("Anna Berg", 1)] == ["her"]
    assert [page["page_id"] for page in named.search_pages("Anna Berg Hall", 1)] == ["hall"]


def test_a_section_is_read_with_what_is_nested_in_it_even_if_the_page_id_holds_a_colon(library):
    text = library.read_section("star:fowey:history")
    assert text.startswith("## History")
    assert "Pirates sailed." in text
    assert "Two ships." in text


def test_full_is_the_whole_page_for_pages_with_and_without_sections(library):
    assert library.read_section("star:fowey:full") == FOWEY
    assert library.read_section("delft:full") == TOWNS[3][2]


def test_an_unknown_page_names_the_nearest_ids(library):
    with pytest.raises(ToolError, match=r"there is no page 'bergen_town'\. The nearest are: 'bergen'"):
        library.view_sections("bergen_town")


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        *(("read_section", [each], "page_id:section_name") for each in ("", "history", None, 7)),
        *(("view_sections", [each], "is not a page id") for each in (None, 3, ["bergen"])),
        *(("view_sections", [each], "there is no page") for each in ("", "  ", ":", "::")),
        *(("search_pages", [each], "query") for each in ("", " ", None, 3, ["a"])),
        *(("search", [each, 3], "query") for each in ("", " ", None, 3, ["a"])),
        *(
            (name, ["harbour", each], "top_k")
            for name in ("search", "search_pages")
            for each in (0, -2, "3", None, True)
        ),
    ],
)
def test_what_a_model_makes_up_is_explained(library, function, arguments, message):
    with pytest.raises(ToolError, match=message):
        getattr(library, function)(*arguments)


# As wiki-search has it: titles are searched, sections are flat


def test_an_index_of_titles_finds_pages_by_their_titles_alone(tmp_path):
    encoder = str(write_tiny_encoder(tmp_path / "encoder"))
    config = IndexConfig(kind="dense", encoder=encoder, entries="titles")
    record = build_index(write_corpus(tmp_path / "c.jsonl"), tmp_path / "index", config)
    assert record.counts.passages == record.counts.documents == len(TOWNS)
    titles = load_encoder(describe_encoder(encoder)).passages([title for _, title, _ in TOWNS])
    ((_, vectors_ND),) = StoredVectors(tmp_path / "index").blocks(100)
    np.testing.assert_allclose(vectors_ND, titles, atol=1e-6)  # the body is not embedded
    library = open_library(tmp_path / "index", RetrievalConfig(index=config))
    assert library.search_pages("Delft", 1) == [{"page_id": "delft", "title": "Delft"}]
    assert len(library.search_pages("blue tiles")) == len(TOWNS)
    assert library.read_section("delft:full") == TOWNS[3][2]
    with pytest.raises(IndexMismatchError, match="entries: the index has 'titles', asked for 'passages'"):
        open_library(tmp_path / "index", RetrievalConfig(index=config.model_copy(update={"entries": "passages"})))
    assert "--entries titles" in rebuild_command(tmp_path / "index", record.settings)


@pytest.mark.parametrize("protocol", ["tags", "tools"])
def test_titles_are_refused_where_passages_are_shown(protocol):
    with pytest.raises(ConfigError, match="shows passages"):
        recipe_of({"retrieval": {"entries": "titles"}, "env": {"protocol": protocol}})


def test_flat_sections_are_those_of_wiki_search(tmp_path, library):
    config = IndexConfig(passage_words=12)
    build_index(write_corpus(tmp_path / "c.jsonl"), tmp_path / "index", config)
    flat = open_library(tmp_path / "index", RetrievalConfig(index=config, sections="flat"))
    assert [each["section_id"] for each in flat.view_sections("star:fowey")] == [
        "star:fowey:fowey",
        "star:fowey:history",
        "star:fowey:ships",
    ]
    assert flat.read_section("star:fowey:history") == "## History\n\nPirates sailed.\n"
    assert library.read_section("star:fowey:history") == FOWEY[FOWEY.index("## History") :]
    assert flat.view_sections("delft") == [{"section_id": "delft:full", "section_name": "Full Page"}]
