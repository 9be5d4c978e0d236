"""How well a retriever finds the pages that hold the answers: recall, reciprocal rank and nDCG, by trec_eval.

Judged are pages, each by its best passage, because questions name pages. A question counts by its own share of
supporting pages found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seekling.errors import DataError, MissingExtraError
from seekling.evaluate.intervals import Mean, mean_of
from seekling.retrieval.library import Library
from seekling.types import Question

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class RetrievalScores:
    """What one retriever showed on a set of questions."""

    metrics: dict[str, Mean]
    """recall@k for each cut, mrr@K and ndcg@K for the largest cut K."""
    num_questions: int
    num_unjudged: int
    """Questions that name no supporting page: left out."""
    num_missing: int
    """Supporting pages that the index does not hold: they count as not found."""


def score_retrieval(
    library: Library,
    questions: Sequence[Question],
    cuts: Sequence[int] = (3, 5, 10),
    *,
    progress: Progress = lambda done, total: None,
) -> RetrievalScores:
    """Ask every question for pages and score the lists at the lengths `cuts`, ascending.

    Raises:
        DataError: no question names a supporting page.
        MissingExtraError: pytrec-eval-terrier is not installed.

    Source: trec_eval's recall, recip_rank and ndcg_cut, as pytrec_eval (arXiv:1805.01597) wraps them.
    """
    try:
        import pytrec_eval
    except ImportError:
        raise MissingExtraError("scoring retrieval needs pytrec-eval-terrier: pip install 'seekling[recall]'") from None
    judged = [question for question in questions if question.supporting_ids]
    if not judged:
        raise DataError(
            f"none of {len(questions)} questions names a supporting page; expected supporting_ids: ids of the pages "
            "that hold the answer"
        )
    depth, wanted, found = max(cuts), {}, {}
    missing: set[str] = set()
    for number, question in enumerate(judged):
        pages = [page["page_id"] for page in library.search_pages(question.question, depth)]
        wanted[str(number)] = dict.fromkeys(question.supporting_ids, 1)
        # trec_eval sorts by score and breaks ties by id: the rank itself is the score.
        found[str(number)] = {page: float(depth - rank) for rank, page in enumerate(pages)}
        missing.update(page for page in question.supporting_ids if page not in pages and not library.has_page(page))
        progress(number + 1, len(judged))
    measures = {"recip_rank", f"ndcg_cut.{depth}", f"recall.{','.join(map(str, cuts))}"}
    rows = pytrec_eval.RelevanceEvaluator(wanted, measures).evaluate(found).values()
    names = {f"recall@{cut}": f"recall_{cut}" for cut in cuts}
    names |= {f"mrr@{depth}": "recip_rank", f"ndcg@{depth}": f"ndcg_cut_{depth}"}
    # A question without a single hit has no row.
    values = {name: [float(row[key]) for row in rows] for name, key in names.items()}
    metrics = {name: mean_of(each + [0.0] * (len(judged) - len(each))) for name, each in values.items()}
    return RetrievalScores(metrics, len(judged), len(questions) - len(judged), len(missing))
