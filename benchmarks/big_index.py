"""The compressed dense index at growing sizes: recall against exact search, latency, memory, disk, and 21 million.

    python benchmarks/big_index.py WORK --like INDEX [INDEX...] --questions FILE [FILE...] [--sizes N ...]

WORK holds the vectors while this runs (2 bytes x 768 a vector, and an index of 0.9 kB a vector); what is there already
is used again, and everything is deleted at the end unless --keep is given. INDEX are exact dense indexes (`seekling
index --kind dense --vectors exact`) and FILE the .npy vectors of real questions, in the order of the INDEX: the made
vectors are fitted to them. `--real` measures the index on the vectors of INDEX and FILE themselves instead.

How vectors are made: topic + page + passage, three normal draws. The spectrum of the sum is that of the real
passages, each of whose eigenvalues becomes two of half the size, so that 384 dimensions become 768; the passage's part
has the spectrum of real passages around their page's mean; topics (20,000, of Zipf sizes) get the share of the rest
that gives as near neighbours on other pages as real ones have. A page has 1 to 13 passages, side by side. A question
is a passage of the first quarter million mixed with a draw from the real questions' spectrum, at the cosine of one
real question to its best passage. The real and the made vectors are compared at one size before anything is measured.
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
from seekling.retrieval.store import PassageStore

DIMENSION, TOP_K, BLOCK, TARGET = 768, 3, 20_000, 21_000_000
NUM_TOPICS, MOST_PASSAGES = 20_000, 13


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


def main() -> None:
    """Read the arguments, make vectors, measure every size and print the table and the fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--like", nargs="+", type=Path, required=True)
    parser.add_argument("--questions", nargs="+", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", type=int, default=[250_000, 500_000, 1_000_000, 2_000_000])
    parser.add_argument("--num-queries", type=int, default=300)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    real = [np.load(folder / "vectors.npy", mmap_mode="r") for folder in arguments.like]
    asked = [np.load(file) for file in arguments.questions]
    if arguments.real:
        vectors_ND, queries_QD = np.concatenate(real), np.concatenate(asked)
        print_row(measure(arguments.work / "real", vectors_ND, queries_QD, exact_top(vectors_ND, queries_QD)))
        return
    model = fit_model(real, pages_of(arguments.like), asked)
    vectors_ND = make_vectors(arguments.work / "made.npy", model, max(arguments.sizes))
    queries_QD = make_queries(vectors_ND[: min(arguments.sizes)], model, arguments.num_queries)
    rows = []
    for size in arguments.sizes:
        row = measure(
            arguments.work / str(size), vectors_ND[:size], queries_QD, exact_top(vectors_ND[:size], queries_QD)
        )
        print_row(row)
        rows.append(row)
        if not arguments.keep:
            shutil.rmtree(arguments.work / str(size))
    print_fits(rows)
    if not arguments.keep:
        (arguments.work / "made.npy").unlink()


def pages_of(folders: Sequence[Path]) -> np.ndarray:
    """(N,) a number per passage of some indexes, the same for passages of one page."""
    ids = [f"{n}:{passage.title}" for n, folder in enumerate(folders) for passage in PassageStore(folder)]
    return np.unique(ids, return_inverse=True)[1]


def fit_model(real: Sequence[np.ndarray], pages_N: np.ndarray, asked: Sequence[np.ndarray]) -> Model:
    """Fit spectra and shares to real passages and questions, print how well the result resembles them."""
    vectors_ND = np.concatenate(real)
    best_Q = np.concatenate([(each @ passages.T).max(axis=1) for each, passages in zip(asked, real, strict=True)])
    mean_D = vectors_ND.mean(axis=0)
    variances_D, basis_DD = np.linalg.eigh(np.cov(vectors_ND.T))
    variances_D, basis_DD = np.maximum(variances_D[::-1], 1e-9), basis_DD[:, ::-1]
    counts_P = np.bincount(pages_N)
    is_mixed_N = counts_P[pages_N] > 1
    sums_PD = np.zeros((len(counts_P), len(mean_D)))
    np.add.at(sums_PD, pages_N, vectors_ND)
    around_ND = (vectors_ND - (sums_PD / counts_P[:, None])[pages_N])[is_mixed_N]
    # Around the mean of n, a draw has (n-1)/n of its variance.
    around_ND /= np.sqrt(1 - 1 / counts_P[pages_N[is_mixed_N]])[:, None]
    passage_D = np.minimum((around_ND @ basis_DD).var(axis=0), 0.98 * variances_D)
    question_D = ((np.concatenate(asked) - mean_D) @ basis_DD).var(axis=0)
    wide = [np.repeat(each / 2, 2) for each in (variances_D - passage_D, passage_D, question_D)]
    mean_768 = np.repeat(mean_D @ basis_DD / np.sqrt(2), 2)
    goal = neighbour_cosine(vectors_ND, pages_N)
    models = [
        Model(mean_768, np.sqrt(s * wide[0]), np.sqrt((1 - s) * wide[0]), np.sqrt(wide[1]), np.sqrt(wide[2]), best_Q)
        for s in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    ]
    found = []
    for model in models:
        made_ND, made_pages_N = next(draw(model, len(vectors_ND), np.random.default_rng(1), len(vectors_ND) // 100))
        found.append(neighbour_cosine(made_ND, made_pages_N))
    chosen = int(np.argmin(np.abs(np.array(found) - goal)))
    print(
        f"real: {len(vectors_ND):,} passages; variance within pages {passage_D.sum() / variances_D.sum():.2f}; "
        f"questions to best passage: cosine {np.median(best_Q):.3f}\n"
        f"nearest on another page, median cosine at {len(vectors_ND):,}: real {goal:.3f}, made {found[chosen]:.3f} "
        f"(topics' share {chosen / 10:.1f})",
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
        pages_B = np.repeat(np.arange(block), rng.integers(1, MOST_PASSAGES + 1, size=block))[:block]
        num_pages = int(pages_B[-1]) + 1
        pages_PD = rng.standard_normal((num_pages, DIMENSION), dtype=np.float32) * model.page_D.astype(np.float32)
        pages_PD += topics_TD[rng.choice(num_topics, num_pages, p=weights_T)] + model.mean_D.astype(np.float32)
        vectors_BD = rng.standard_normal((block, DIMENSION), dtype=np.float32) * model.passage_D.astype(np.float32)
        vectors_BD += pages_PD[pages_B]
        vectors_BD /= np.linalg.norm(vectors_BD, axis=1, keepdims=True)
        yield vectors_BD, pages_B


def make_vectors(path: Path, model: Model, num_vectors: int) -> np.ndarray:
    """(N, 768) float16 in a mapped file, made unless the file is there and has as many."""
    if not path.exists() or len(np.load(path, mmap_mode="r")) < num_vectors:
        partial = path.with_suffix(".partial")
        made_ND = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float16, shape=(num_vectors, DIMENSION))
        blocks = draw(model, BLOCK, np.random.default_rng(0))
        for start in range(0, num_vectors, BLOCK):
            made_ND[start : start + BLOCK] = next(blocks)[0][: num_vectors - start]
        made_ND.flush()
        del made_ND
        partial.rename(path)
    return np.load(path, mmap_mode="r")


def make_queries(vectors_ND: np.ndarray, model: Model, num_queries: int) -> np.ndarray:
    """(Q, 768) unit vectors: a passage each, mixed with a draw of the questions' spectrum to a real cosine."""
    rng = np.random.default_rng(3)
    passages_QD = vectors_ND[np.sort(rng.choice(len(vectors_ND), num_queries, replace=False))].astype(np.float32)
    others_QD = (rng.normal(size=passages_QD.shape) * model.question_D + model.mean_D).astype(np.float32)
    others_QD -= (others_QD * passages_QD).sum(axis=1, keepdims=True) * passages_QD
    others_QD /= np.linalg.norm(others_QD, axis=1, keepdims=True)
    cosines_Q1 = rng.choice(model.cosines_Q, num_queries).astype(np.float32)[:, None]
    mixed_QD: np.ndarray = cosines_Q1 * passages_QD + np.sqrt(1 - cosines_Q1**2) * others_QD
    return mixed_QD


def exact_top(vectors_ND: np.ndarray, queries_QD: np.ndarray) -> np.ndarray:
    """(Q, 3) positions of the nearest, by exact search in float32."""
    best_QK = np.full((len(queries_QD), TOP_K), -2.0, dtype=np.float32)
    position_QK = np.zeros((len(queries_QD), TOP_K), dtype=np.int64)
    for start in range(0, len(vectors_ND), BLOCK):
        scores_QB = queries_QD @ vectors_ND[start : start + BLOCK].astype(np.float32).T
        top_QK = np.argpartition(-scores_QB, TOP_K, axis=1)[:, :TOP_K]
        both_QK = np.concatenate([best_QK, np.take_along_axis(scores_QB, top_QK, axis=1)], axis=1)
        positions_QK = np.concatenate([position_QK, top_QK + start], axis=1)
        order_QK = np.argsort(-both_QK, axis=1)[:, :TOP_K]
        best_QK = np.take_along_axis(both_QK, order_QK, axis=1)
        position_QK = np.take_along_axis(positions_QK, order_QK, axis=1)
    return position_QK


def measure(folder: Path, vectors_ND: np.ndarray, queries_QD: np.ndarray, exact_QK: np.ndarray) -> dict[str, float]:
    """Build an index in one fresh process, search it in another; both tell what they took."""
    folder.mkdir(exist_ok=True)
    row: dict[str, float] = {"size": len(vectors_ND), "dimension": vectors_ND.shape[1]}
    np.savez(folder / "queries.npz", queries=queries_QD, exact=exact_QK)
    if not (folder / compressed.CODES).exists():
        pack = compressed.row_packer(folder, vectors_ND.shape[1])
        with compressed.row_writer(folder, *vectors_ND.shape) as rows:
            for start in range(rows.done, len(vectors_ND), BLOCK):
                rows.append(pack(vectors_ND[start : start + BLOCK].astype(np.float32)))
    for stage in (build, search):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            row |= fresh.submit(stage, folder).result()
    row["disk_bytes"] = sum((folder / name).stat().st_size for name in (compressed.ROWS, compressed.CODES))
    return row


def build(folder: Path) -> dict[str, float]:
    """Make the codes; CPU seconds, since the machine may be shared, and the most memory that was resident."""
    if (folder / compressed.CODES).exists():
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


def print_fits(rows: Sequence[dict[str, float]]) -> None:
    """Fit y = a N^b over the sizes, in logarithms, and print it for 21 million; memory and disk by arithmetic too."""
    sizes = np.log([row["size"] for row in rows])
    for name, unit, scale in (
        ("p50_ms", "ms", 1.0),
        ("p95_ms", "ms", 1.0),
        ("p50_cpu_ms", "ms", 1.0),
        ("anonymous_bytes", "GiB", 2.0**30),
        ("disk_bytes", "GiB", 2.0**30),
        ("build_cpu_s", "s", 1.0),
    ):
        if len(rows) > 1 and all(row.get(name) for row in rows):
            slope, intercept = np.polyfit(sizes, np.log([row[name] for row in rows]), 1)
            at_target = np.exp(intercept + slope * np.log(TARGET)) / scale
            print(f"{name} grows as N^{slope:.2f}: {at_target:.2f} {unit} at {TARGET:,}")
    num_lists = 4 * TARGET**0.5
    codes = TARGET * (DIMENSION / 8 + 8 + 8) + num_lists * (16 * (DIMENSION / 8 + 8) + 4 * DIMENSION)
    print(
        f"arithmetic for {TARGET:,}: codes ({DIMENSION // 8} + 8 B), ids (8 B), {num_lists:,.0f} lists (padding, "
        f"centroid): {codes / 2**30:.2f} GiB in memory; rows ({DIMENSION} + 4 B): "
        f"{TARGET * (DIMENSION + 4) / 2**30:.2f} GiB, with codes {(TARGET * (DIMENSION + 4) + codes) / 2**30:.2f} GiB "
        "on disk"
    )


if __name__ == "__main__":
    main()
