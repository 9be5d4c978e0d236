"""Search-R1's retrieval server as it behaves, re-created: the other side of `benchmarks/retrieval.py server`.

    python benchmarks/reference_search_server.py WORK --port N     # WORK is what the benchmark prepared

What it keeps of the original (search_r1/search/retrieval_server.py, dense side): FastAPI with one synchronous endpoint
in one process, a flat FAISS index, mean pooling, at most 256 tokens, a progress bar per request, each request encoded
and searched by itself. What it leaves out: the GPU (the original has no CPU path; its `.cuda()` is the only change),
half precision, and its crash without scores. Passages lie in memory here, which is quicker than the original's file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import faiss
import numpy as np
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer


class QueryRequest(BaseModel):
    """What a client sends."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


class DenseRetriever:
    """Encodes and searches one request."""

    def __init__(self, work: Path) -> None:
        settings = json.loads((work / "settings.json").read_text(encoding="utf-8"))
        self._prefix = settings["query_prefix"]
        self._tokenizer = AutoTokenizer.from_pretrained(settings["encoder"], use_fast=True)
        self._model = AutoModel.from_pretrained(settings["encoder"]).eval()
        vectors_ND = np.load(work / "vectors.npy")
        self._index = faiss.IndexFlatIP(vectors_ND.shape[1])
        self._index.add(vectors_ND)
        self._corpus = [json.loads(line) for line in (work / "passages.jsonl").open(encoding="utf-8")]

    @torch.no_grad()
    def encode(self, queries: list[str]) -> np.ndarray:
        """(B, D) unit vectors."""
        texts = [self._prefix + query for query in queries]
        inputs = self._tokenizer(texts, max_length=256, padding=True, truncation=True, return_tensors="pt")
        output = self._model(**inputs, return_dict=True)
        mask = inputs["attention_mask"]
        hidden = output.last_hidden_state.masked_fill(~mask[..., None].bool(), 0.0)
        vectors = torch.nn.functional.normalize(hidden.sum(dim=1) / mask.sum(dim=1)[..., None], dim=-1)
        return vectors.numpy().astype(np.float32, order="C")

    def batch_search(self, queries: list[str], top_k: int) -> tuple[list[list[dict[str, str]]], list[list[float]]]:
        """Documents and scores of each query."""
        documents, scores = [], []
        for start in tqdm(range(0, len(queries), 512), desc="Retrieval process: "):
            batch_scores, batch_places = self._index.search(self.encode(queries[start : start + 512]), k=top_k)
            scores += batch_scores.tolist()
            documents += [[self._corpus[place % len(self._corpus)] for place in places] for places in batch_places]
        return documents, scores


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    retriever = DenseRetriever(arguments.work)
    app = FastAPI()

    @app.post("/retrieve")
    def retrieve_endpoint(request: QueryRequest) -> dict[str, object]:
        documents, scores = retriever.batch_search(request.queries, request.topk or 3)
        pairs = [zip(row, of_row, strict=True) for row, of_row in zip(documents, scores, strict=True)]
        return {"result": [[{"document": each, "score": score} for each, score in row] for row in pairs]}

    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
