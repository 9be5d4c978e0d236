"""The library that an agent walks through: search, page lists, section lists, section texts.

What goes wrong here is usually the model's doing (an id it made up), so errors are `ToolError`s whose text helps it to
do better next time; they name the nearest ids.
"""

from __future__ import annotations

import difflib
import threading
from pathlib import Path

from seekling.config import RetrievalConfig
from seekling.corpus import sections
from seekling.errors import ToolError
from seekling.retrieval.encoders import is_endpoint
from seekling.retrieval.index import open_index
from seekling.retrieval.index_record import RECORD_NAME, read_record
from seekling.retrieval.interface import DocumentSource, Retriever
from seekling.retrieval.remote import open_distant
from seekling.retrieval.store import DocumentStore
from seekling.types import Document, Hit

_NUM_NEAR_IDS = 3
_Stamp = tuple[int, int] | None


class Library:
    """A retriever and the documents it searches. Safe to share between threads.

    Args:
        retriever: finds passages.
        documents: gives whole pages.
        may_wait: a call may wait for a server.
        flat_sections: a section ends at the next heading of any level, as in wiki-search.
        place: the folder where the index was opened, and its stamp then, for `refresh`; None: elsewhere.
        expect: how it was to be made.
    """

    def __init__(
        self,
        retriever: Retriever,
        documents: DocumentSource,
        *,
        may_wait: bool = False,
        flat_sections: bool = False,
        place: tuple[Path, _Stamp] | None = None,
        expect: RetrievalConfig | None = None,
    ) -> None:
        self._retriever = retriever
        self._documents = documents
        self._flat_sections = flat_sections
        self._place, self._expect, self._lock = place, expect, threading.Lock()
        self.may_wait = may_wait
        self._titles: dict[str, str] = {}
        """Of the pages that searches brought: a vector database has passages with titles, and no pages to ask."""

    def is_replaced(self) -> bool:
        """Whether another index has come to stand where this one was opened, as `seekling index --update` does."""
        return self._place is not None and _stamp(self._place[0]) not in (None, self._place[1])

    def refresh(self) -> None:
        """Open the index anew where it was replaced; what is still being read of the old one stays readable.

        Raises:
            IndexMismatchError: the new one is damaged or was made by other settings: the old one stays open, until
                another comes.
        """
        with self._lock:
            if self._place is not None and self.is_replaced():
                folder = self._place[0]
                self._place = folder, _stamp(folder)
                self._retriever, self._documents = open_index(folder, self._expect), DocumentStore(folder)
                self._titles = {}

    def search(self, query: str, top_k: int) -> list[Hit]:
        """The best `top_k` passages.

        Raises:
            ToolError: the query is not a text or holds none, or `top_k` is no positive whole number.
        """
        _check_search(query, top_k)
        hits = self._retriever.search([query], top_k)[0]
        self._titles.update((hit.passage.document_id, hit.passage.title) for hit in hits)
        return hits

    def search_pages(self, query: str, top_k: int = 10) -> list[dict[str, str]]:
        """The best `top_k` pages as {"page_id", "title"}, each once by its best passage; raises as `search`.

        A page whose title is the query comes first.
        """
        _check_search(query, top_k)
        num_passages = 4 * top_k
        while True:
            hits = self._retriever.search([query], num_passages)[0]
            titles: dict[str, str] = {}
            for hit in hits:
                titles.setdefault(hit.passage.document_id, hit.passage.title)
            # All passages of few pages may fill the list; ask for more until enough pages or no more hits come.
            if len(titles) >= top_k or len(hits) < num_passages:
                # Who asks for a name wants that page, not the one that says the name most often.
                wanted = query.strip().casefold()
                best = sorted(titles.items(), key=lambda page: page[1].strip().casefold() != wanted)
                return [{"page_id": page, "title": title} for page, title in best[:top_k]]
            num_passages *= 4

    def has_page(self, page_id: str) -> bool:
        """Whether there is a page with exactly this id."""
        return self.find(page_id) is not None

    def find(self, page_id: str) -> Document | None:
        """The page with exactly this id; None also where there are passages only."""
        return self._documents.find(page_id)

    def title_of(self, page_id: str) -> str:
        """A page's title, as a search showed it or as the page says; empty when there is no such page."""
        if page_id in self._titles:
            return self._titles[page_id]
        document = self.find(page_id)
        return document.title if document is not None else ""

    def view_sections(self, page_id: str) -> list[dict[str, str]]:
        """The sections of a page in order, as {"section_id", "section_name"}; a ToolError without such a page."""
        document = self._page(page_id)
        listed = sections.list_sections(document, compat=self._flat_sections)
        return [{"section_id": section.id, "section_name": section.name} for section in listed]

    def read_section(self, section_id: str) -> str:
        """The text of a section, the sections nested in it included unless these are flat; "page:full" is all of it.

        Raises:
            ToolError: there is no such section.
        """
        if not isinstance(section_id, str) or ":" not in section_id:
            raise ToolError(
                f"{section_id!r} is not a section id; these look like page_id:section_name and come from view_sections"
            )
        failures = []
        # Ids of pages and names of sections may hold colons themselves; whatever reading of the id leads to a text is
        # meant, the longest page id first.
        for page_id in sections.page_id_candidates(section_id):
            document = self._documents.find(page_id)
            if document is not None:
                try:
                    return sections.read_section(document, section_id, compat=self._flat_sections)
                except ToolError as error:
                    failures.append(error)
        if failures:
            raise failures[0]
        raise self._no_page(section_id.partition(":")[0])

    def _page(self, page_id: str) -> Document:
        if not isinstance(page_id, str):
            raise ToolError(f"{page_id!r} is not a page id; search_pages returns those")
        document = self._documents.find(page_id)
        if document is None:
            raise self._no_page(page_id)
        return document

    def _no_page(self, page_id: str) -> ToolError:
        """The error for a made-up id. Such an id resembles a title, and titles can be searched without scanning ids."""
        words = page_id.replace("_", " ").strip()
        found = [page["page_id"] for page in self.search_pages(words)] if words else []
        found.sort(key=lambda each: -difflib.SequenceMatcher(None, page_id.lower(), each.lower()).ratio())
        near = ", ".join(repr(each) for each in found[:_NUM_NEAR_IDS])
        hint = f"The nearest are: {near}." if near else "Nothing resembles it; search_pages finds pages."
        return ToolError(f"there is no page {page_id!r}. {hint}")


def open_library(index_dir: Path | str, expect: RetrievalConfig | None = None) -> Library:
    """Open the library of an index; `index_dir` plays no part when `expect` says that the index is remote.

    Raises:
        IndexMismatchError: the index is missing, damaged or not as expected.
        ConfigError: the address of a remote index is no search server's.
        ServerError: a remote index does not answer.
    """
    flat_sections = expect is not None and expect.sections == "flat"
    if expect is not None and expect.url:
        return Library(*open_distant(expect), may_wait=True, flat_sections=flat_sections)
    folder = Path(index_dir)
    place = folder, _stamp(folder)
    retriever, documents = open_index(folder, expect), DocumentStore(folder)
    encoder = read_record(folder).encoder
    may_wait = encoder is not None and is_endpoint(encoder.spec if expect is None else expect.index.encoder)
    return Library(retriever, documents, may_wait=may_wait, flat_sections=flat_sections, place=place, expect=expect)


def _stamp(folder: Path) -> _Stamp:
    """Which index stands in a folder; None while it is just being replaced."""
    try:
        stat = (folder / RECORD_NAME).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _check_search(query: str, top_k: int) -> None:
    """Arguments come from a model's program, so their types are not to be trusted."""
    if not isinstance(query, str):
        raise ToolError(f"the query must be a text, not {type(query).__name__}: {query!r:.80}")
    if not query.strip():
        raise ToolError("the query is empty; say in a few words what to look for")
    if not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1:
        raise ToolError(f"top_k must be a whole number of at least 1, not {top_k!r:.80}")
