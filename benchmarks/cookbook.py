"""What tinker-cookbook's recipes fetch from the network, made from local files, so that they run without it.

`prepare` fills a Chroma server with passages, and writes questions and conversations where the recipes look for them:
`search_tool` in Hugging Face's local copy of its data set, `chat_sl` in a folder by the name of one. `embed` answers
Gemini's embedding API with a local encoder. The recipes themselves stay as they are. docs/TINKER.md has the commands.

Questions are taken in the file's order: the first `--test` for evaluation, then `--supervised`, then `--rl`, which are
what the recipes train on.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from seekling.retrieval.encoders import describe_encoder, load_encoder

COLLECTION, DATASET, CONVERSATIONS = "wiki_embeddings", "PeterJinGo/nq_hotpotqa_train", "HuggingFaceH4/no_robots"
"""The names that the recipes know."""
Row = dict[str, object]


def main() -> None:
    """Read the command's words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    commands = parser.add_subparsers(required=True)
    embed = commands.add_parser("embed")
    embed.add_argument("--port", type=int, default=8100)
    embed.set_defaults(run=serve_embeddings)
    made = commands.add_parser("prepare")
    made.add_argument("questions", type=Path, help="rows of id, question, answers, supporting_ids")
    made.add_argument("corpus", type=Path, help="rows of id, title, content")
    made.add_argument("model", help="whose tokenizer the recipes are given")
    made.add_argument("--chroma-port", type=int, default=8000)
    made.add_argument("--passages", type=int, default=1500, help="pages of the questions, and others up to this number")
    made.add_argument("--words", type=int, default=50, help="of a passage")
    for name, number in {"test": 100, "supervised": 240, "rl": 400}.items():
        made.add_argument(f"--{name}", type=int, default=number, help="questions")
    made.add_argument("--held-out", type=int, default=32, help="conversations of test questions")
    made.set_defaults(run=prepare)
    asked = parser.parse_args()
    asked.run(asked)


def serve_embeddings(asked: argparse.Namespace) -> None:
    """Answer /v1/models/NAME:batchEmbedContents; vectors are filled up with zeros, which changes no distance."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    encoder = load_encoder(describe_encoder(asked.encoder))

    def answer(body: dict[str, list[Row]]) -> JSONResponse:
        texts = [" ".join(part["text"] for part in each["content"]["parts"]) for each in body["requests"]]
        sizes = [int(each.get("outputDimensionality", 768)) for each in body["requests"]]
        vectors = [np.pad(row, (0, size - len(row))) for row, size in zip(encoder.queries(texts), sizes, strict=True)]
        return JSONResponse({"embeddings": [{"values": vector.tolist()} for vector in vectors]})

    async def embed(request: Request) -> JSONResponse:
        return answer(await request.json())

    route = Route("/{version}/models/{model}:batchEmbedContents", embed, methods=["POST"])
    uvicorn.run(Starlette(routes=[route]), port=asked.port, log_level="warning")


def prepare(asked: argparse.Namespace) -> None:
    """Fill Chroma, and write the files."""
    import chromadb

    sizes = [asked.test, asked.supervised, asked.rl]
    questions = _rows(asked.questions)[: sum(sizes)]
    wanted = {page for each in questions for page in each["supporting_ids"]}
    pages = sorted(_rows(asked.corpus), key=lambda page: page["id"] not in wanted)[: asked.passages]
    passages = [text for page in pages for text in _pieces(page, asked.words)]
    encoder = load_encoder(describe_encoder(asked.encoder))
    client = chromadb.HttpClient(port=asked.chroma_port)
    collection = client.get_or_create_collection(COLLECTION, metadata={"hnsw:space": "cosine"})
    for at in range(collection.count(), len(passages), 64):
        texts = passages[at : at + 64]
        ids = [str(number) for number in range(at, at + len(texts))]
        collection.upsert(ids=ids, documents=texts, embeddings=_padded(encoder.passages(texts)))
    ends = np.cumsum(sizes)
    test, supervised, rl = questions[: ends[0]], questions[ends[0] : ends[1]], questions[ends[1] :]
    for split, rows in {"test": test, "train": rl}.items():
        _write_questions(rows, Path("~/.cache/tinker-cookbook").expanduser() / DATASET / split / f"{split}.parquet")
    asking = _padded(encoder.queries([each["question"] for each in questions]))
    hits = collection.query(query_embeddings=asking, n_results=3)["documents"]
    folder = Path(CONVERSATIONS)
    folder.mkdir(parents=True, exist_ok=True)
    for split, first, rows in (("test", 0, test), ("train", asked.test, supervised)):
        found = zip(rows, hits[first : first + len(rows)], strict=True)
        talks = [talk for each, texts in found if (talk := _conversation(each, texts, asked.model))]
        told = [json.dumps({"messages": talk}, ensure_ascii=False) for talk in talks]
        told = told[: asked.held_out] if split == "test" else told
        (folder / f"{split}.jsonl").write_text("\n".join(told) + "\n", encoding="utf-8")
        print(f"{len(told)} conversations for {split}")
    print(f"{len(passages)} passages of {len(pages)} pages in Chroma")


def _rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _pieces(page: dict[str, str], num_words: int) -> list[str]:
    words = page["content"].split("\n\n", 1)[-1].split()
    return [f"{page['title']}: {' '.join(words[at : at + num_words])}" for at in range(0, len(words), num_words)]


def _padded(vectors: np.ndarray, size: int = 768) -> np.ndarray:
    return np.pad(vectors, ((0, 0), (0, size - vectors.shape[1])))


def _write_questions(rows: Sequence[dict[str, str]], path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    told = [{"question": each["question"], "golden_answers": each["answers"], "data_source": "nq"} for each in rows]
    parquet.write_table(pa.Table.from_pylist(told), path)


def _conversation(question: dict[str, str], texts: Sequence[str], model: str) -> list[dict[str, str]] | None:
    """A search for the question itself, and the answer; None where it is not found."""
    from tinker_cookbook.recipes.search_tool.search_env import SEARCH_TASK_INSTRUCTIONS
    from tinker_cookbook.recipes.search_tool.tools import ChromaTool
    from tinker_cookbook.renderers import get_renderer
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    text = "\n".join(texts)
    said = next((each for each in question["answers"] if re.search(rf"\b{re.escape(each)}\b", text, re.I)), None)
    if said is None:
        return None
    call = json.dumps({"name": "search", "arguments": {"query_list": [question["question"]]}})
    found = f"Query: {question['question']}\n" + "".join(f"Document {n}:\n{text}\n" for n, text in enumerate(texts, 1))
    renderer = get_renderer("qwen3_instruct", get_tokenizer(model))
    prefix = renderer.create_conversation_prefix_with_tools([ChromaTool.search.to_spec()], SEARCH_TASK_INSTRUCTIONS)
    return [
        *({"role": each["role"], "content": each["content"]} for each in prefix),
        {"role": "user", "content": question["question"]},
        {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
        {"role": "tool", "content": found},
        {"role": "assistant", "content": f"Answer: {said}"},
    ]


if __name__ == "__main__":
    main()
