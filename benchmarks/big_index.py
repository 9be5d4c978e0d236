"""The compressed dense index at growing sizes: recall against exact search, latency, memory and disk.

    python benchmarks/big_index.py WORK --like REAL.npz [--sizes N ...]

WORK holds the vectors while this runs (2 bytes x 768 a vector, and as much for an index); what is there already
is used again, and everything is deleted at the end unless --keep is given. REAL.npz has what the made vectors are
fitted to: `passages` (N, D), `pages` (N,) a number each, the same for passages of one page, and `questions` (Q, D), all
unit vectors of a real encoder, the questions' answers among the passages.

How vectors are made: topic + page + passage, three normal draws. The spectrum of the sum is that of the real
passages, each of whose eigenvalues becomes two of half the size, so that 384 dimensions become 768; the passage's part
has the spectrum of real passages around their page's mean; topics (20,000, of Zipf sizes) get the share of the rest
that gives as near neighbours on other pages as real ones have. Passages of a page lie side by side, as many as a real
page has. A question is the first passage of a page among the first quarter million, mixed with a draw from the real
questions' spectrum at the cosine of one real question to its best passage. The real and the made vectors are compared
at one size before anything is measured.

The settings in compressed.py were chosen with --query-seed 3 and 4 at up to 2 million; report another seed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seekling.retrieval import compressed
from seekling.retrieval.compressed import CODES
from seekling.retrieval.interface import EMPTY_RANKING, best_of
from seekling.retrieval.vectors import HALF, RowWriter, nearest_in_blocks

DIMENSION, TOP_K, BLOCK = 768, 3, 25_000
NUM_TOPICS = 20_000
MADE, FIRSTS = "made.npy", "firsts.npy"


@dataclass(frozen=True)
class Model:
    """What vectors and questions are drawn from; D is 768."""

    mean_D: np.ndarray
    topic_D: np.ndarray
    page_D: np.ndarray
    passage_D: np.ndarray
    """Standard deviations of the three parts."""
    question_D: np.ndarray
    """Standard deviations of questions."""
    cosines_Q: np.ndarray
    """Of real questions to their best passages."""
    sizes_P: np.ndarray
    """Passages of each real page."""


def main() -> None:
    """Read the arguments, make vectors, measure every size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--like", type=Path)
    parser.add_argument("--sizes", nargs="+", type=int, default=[250_000, 500_000, 1_000_000, 2_000_000])
    parser.add_argument("--num-queries", type=int, default=500)
    parser.add_argument("--query-seed", type=int, default=4)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    real = np.load(arguments.like)
    passages_ND, questions_QD = real["passages"].astype(np.float32), real["questions"].astype(np.float32)
    model = fit_model(passages_ND, real["pages"], questions_QD)
    vectors_ND, firsts_P = make_vectors(arguments.work, model, max(arguments.sizes))
    rng = np.random.default_rng((3, arguments.query_seed))
    asked_Q = rng.choice(firsts_P[firsts_P < min(arguments.sizes)], arguments.num_queries, replace=False)
    queries_QD = make_queries(vectors_ND[np.sort(asked_Q)], model, rng)
    exact = exact_tops(vectors_ND, queries_QD, arguments.sizes)
    for size in arguments.sizes:
        row = measure(arguments.work / str(size), vectors_ND[:size], queries_QD, exact[size])
        print_row(row)
        if not arguments.keep:
            shutil.rmtree(arguments.work / str(size))
    if not arguments.keep:
        for name in MADE, FIRSTS:
            (arguments.work / name).unlink()


def fit_model(vectors_ND: np.ndarray, pages_N: np.ndarray, questions_QD: np.ndarray) -> Model:
    """Fit spectra and shares to real passages and questions."""
    best_Q = (questions_QD @ vectors_ND.T).max(axis=1)
    mean_D = vectors_ND.mean(axis=0)
    variances_D, basis_DD = np.linalg.eigh(np.cov(vectors_ND.T))
    variances_D, basis_DD = np.maximum(variances_D[::-1], 1e-9), basis_DD[:, ::-1]
    counts_P = np.bincount(pages_N)
    is_mixed_N = counts_P[pages_N] > 1
    sums_PD = np.zeros((len(counts_P), len(mean_D)))
    np.add.at(sums_PD, pages_N, vectors_ND)
    around_ND = (vectors_ND - (sums_PD / np.maximum(counts_P, 1)[:, None])[pages_N])[is_mixed_N]
    # Around the mean of n, a draw has (n-1)/n of its variance.
    around_ND /= np.sqrt(1 - 1 / counts_P[pages_N[is_mixed_N]])[:, None]
    passage_D = np.minimum((around_ND @ basis_DD).var(axis=0), 0.98 * variances_D)
    question_D = ((questions_QD - mean_D) @ basis_DD).var(axis=0)
    wide = [np.repeat(each / 2, 2) for each in (variances_D - passage_D, passage_D, question_D)]
    mean_768 = np.repeat(mean_D @ basis_DD / np.sqrt(2), 2)
    goal = neighbour_cosine(vectors_ND, pages_N)
    models = [
        Model(
            mean_768,
            np.sqrt(s * wide[0]),
            np.sqrt((1 - s) * wide[0]),
            np.sqrt(wide[1]),
            np.sqrt(wide[2]),
            best_Q,
            counts_P[counts_P > 0],
        )
        for s in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    ]
    found = []
    for model in models:
        made_ND, made_pages_N = next(draw(model, len(vectors_ND), np.random.default_rng(1), len(vectors_ND) // 100))
        found.append(neighbour_cosine(made_ND, made_pages_N))
    chosen = int(np.argmin(np.abs(np.array(found) - goal)))
    print(
        f"real: {len(vectors_ND):,} passages; variance within pages {passage_D.sum() / variances_D.sum():.2f}; "
        f"nearest on another page, median cosine: real {goal:.3f}, made {found[chosen]:.3f} (topics' share "
        f"{chosen / 10:.1f})",
        flush=True,
    )
    return models[chosen]


def neighbour_cosine(vectors_ND: np.ndarray, pages_N: np.ndarray) -> float:
    """The median cosine of a passage to its nearest on another page, over a few hundred of them."""
    chosen = np.random.default_rng(2).choice(len(vectors_ND), 300, replace=False)
    cosines_BN = vectors_ND[chosen] @ vectors_ND.T
    cosines_BN[pages_N[chosen][:, None] == pages_N[None, :]] = -1
    return float(np.median(cosines_BN.max(axis=1)))


def draw(
    model: Model, block: int, rng: np.random.Generator, num_topics: int = NUM_TOPICS
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of unit vectors and the pages they are on, without end."""
    topics_TD = rng.normal(size=(num_topics, DIMENSION)).astype(np.float32) * model.topic_D.astype(np.float32)
    weights_T = 1 / (10 + np.arange(num_topics))
    weights_T /= weights_T.sum()
    while True:
        pages_B = np.repeat(np.arange(block), rng.choice(model.sizes_P, size=block))[:block]
        num_pages = int(pages_B[-1]) + 1
        pages_PD = rng.standard_normal((num_pages, DIMENSION), dtype=np.float32) * model.page_D.astype(np.float32)
        pages_PD += topics_TD[rng.choice(num_topics, num_pages, p=weights_T)] + model.mean_D.astype(np.float32)
        vectors_BD = rng.standard_normal((block, DIMENSION), dtype=np.float32) * model.passage_D.astype(np.float32)
        vectors_BD += pages_PD[pages_B]
        vectors_BD /= np.linalg.norm(vectors_BD, axis=1, keepdims=True)
        yield vectors_BD, pages_B


def make_vectors(work: Path, model: Model, num_vectors: int) -> tuple[np.ndarray, np.ndarray]:
    """(N, 768) float16 in a mapped file, and the position of the first passage of every page."""
    path = work / MADE
    if not path.exists() or len(np.load(path, mmap_mode="r")) < num_vectors:
        partial, firsts = path.with_suffix(".partial"), []
        made_ND = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float16, shape=(num_vectors, DIMENSION))
        blocks = draw(model, BLOCK, np.random.default_rng(0))
        for start in range(0, num_vectors, BLOCK):
            vectors_BD, pages_B = next(blocks)
            made_ND[start : start + BLOCK] = vectors_BD[: num_vectors - start]
            firsts.append(start + first_positions(pages_B))
        made_ND.flush()
        np.save(work / FIRSTS, np.concatenate(firsts))
        del made_ND
        partial.rename(path)
    return np.load(path, mmap_mode="r"), np.load(work / FIRSTS)


def first_positions(pages_B: np.ndarray) -> np.ndarray:
    """Where the pages of passages begin, which lie side by side."""
    firsts_P: np.ndarray = np.flatnonzero(np.diff(pages_B, prepend=-1))
    return firsts_P


def make_queries(passages_QD: np.ndarray, model: Model, rng: np.random.Generator) -> np.ndarray:
    """(Q, 768) unit vectors: a passage each, mixed with a draw of the questions' spectrum to a real cosine."""
    passages_QD = passages_QD.astype(np.float32)
    others_QD = (rng.normal(size=passages_QD.shape) * model.question_D + model.mean_D).astype(np.float32)
    others_QD -= (others_QD * passages_QD).sum(axis=1, keepdims=True) * passages_QD
    others_QD /= np.linalg.norm(others_QD, axis=1, keepdims=True)
    cosines_Q1 = rng.choice(model.cosines_Q, len(passages_QD)).astype(np.float32)[:, None]
    mixed_QD: np.ndarray = cosines_Q1 * passages_QD + np.sqrt(1 - cosines_Q1**2) * others_QD
    return mixed_QD


def exact_tops(vectors_ND: np.ndarray, queries_QD: np.ndarray, sizes: Sequence[int]) -> dict[int, np.ndarray]:
    """(Q, 3) positions of the nearest among the first vectors, for every size, by exact search in float32."""
    best = [EMPTY_RANKING] * len(queries_QD)
    tops, start = {}, 0
    for size in sorted(sizes):
        starts = range(start, size, BLOCK)
        blocks = (vectors_ND[first : min(first + BLOCK, size)].astype(np.float32) for first in starts)
        more = nearest_in_blocks(blocks, queries_QD, TOP_K, decimals=6)
        for query, (old, new) in enumerate(zip(best, more, strict=True)):
            positions = np.concatenate([old.positions_K, new.positions_K + start])
            best[query] = best_of(positions, np.concatenate([old.scores_K, new.scores_K]), TOP_K)
        tops[size], start = np.stack([ranking.positions_K for ranking in best]), size
    return tops


def measure(folder: Path, vectors_ND: np.ndarray, queries_QD: np.ndarray, exact_QK: np.ndarray) -> dict[str, float]:
    """Build an index in one fresh process, search it in another; both tell what they took."""
    folder.mkdir(exist_ok=True)
    row: dict[str, float] = {"size": len(vectors_ND), "dimension": vectors_ND.shape[1]}
    np.savez(folder / "queries.npz", queries=queries_QD, exact=exact_QK)
    build_rows(folder, vectors_ND)
    for stage in (build, search):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            row |= fresh.submit(stage, folder).result()
    row["disk_bytes"] = sum((folder / name).stat().st_size for name in (HALF, CODES))
    return row


def build_rows(folder: Path, vectors_ND: np.ndarray) -> None:
    """Write the vectors of an index, unless they are there."""
    with RowWriter(folder / HALF, vectors_ND.shape, np.dtype("<f2"), BLOCK) as rows:
        for start in range(rows.done, len(vectors_ND), BLOCK):
            rows.append(vectors_ND[start : start + BLOCK])


def build(folder: Path) -> dict[str, float]:
    """Make the codes; CPU seconds, since the machine may be shared, and the most memory that was resident."""
    if (folder / CODES).exists():
        return {}
    started = time.process_time()
    compressed.build_codes(folder)
    return {"build_cpu_s": time.process_time() - started, "build_peak_bytes": resident("VmHWM")}


def search(folder: Path) -> dict[str, float]:
    """Ask all queries one by one, twice; the second round is timed, by the clock and in CPU time."""
    asked = np.load(folder / "queries.npz")
    started = time.perf_counter()
    before = resident("RssAnon")
    index = compressed.CompressedVectors(folder)
    open_s = time.perf_counter() - started
    taken_s, cpu_s, found, rounds = [], [], 0, 2
    for _ in range(rounds):
        taken_s, cpu_s, found = [], [], 0
        for query_D, exact_K in zip(asked["queries"], asked["exact"], strict=True):
            started, started_cpu = time.perf_counter(), time.process_time()
            ranking = index.nearest(query_D[None], TOP_K, decimals=5)[0]
            taken_s.append(time.perf_counter() - started)
            cpu_s.append(time.process_time() - started_cpu)
            found += len(np.intersect1d(ranking.positions_K, exact_K))
    return {
        "recall": found / asked["exact"].size,
        "num_queries": len(taken_s),
        "p50_ms": 1000 * float(np.median(taken_s)),
        "p95_ms": 1000 * float(np.quantile(taken_s, 0.95)),
        "p50_cpu_ms": 1000 * float(np.median(cpu_s)),
        "open_s": open_s,
        "anonymous_bytes": resident("RssAnon") - before,
        "resident_bytes": resident("VmRSS"),
    }


def resident(name: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def print_row(row: dict[str, float]) -> None:
    """One line of the table, and the same as JSON."""
    print(
        f"{row['size']:>9,} x {row['dimension']}  recall@{TOP_K} {row['recall']:.4f} ({row['num_queries']} queries)  "
        f"p50 {row['p50_ms']:.1f} ms  p95 {row['p95_ms']:.1f} ms  "
        f"CPU {row['p50_cpu_ms']:.1f} ms  in memory {row['anonymous_bytes'] / 2**30:.2f} GiB  "
        f"resident {row['resident_bytes'] / 2**30:.2f} GiB  disk {row['disk_bytes'] / 2**30:.2f} GiB  "
        f"build {row.get('build_cpu_s', 0):.0f} CPU s, peak {row.get('build_peak_bytes', 0) / 2**30:.2f} GiB\n"
        f"  {json.dumps(row)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
