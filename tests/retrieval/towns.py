"""A tiny corpus, a tiny random encoder and indexes over both, for every test of retrieval."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from seekling.config import IndexConfig
from seekling.retrieval.index import build_index

TOWNS = [
    ("alnwick", "Alnwick", "Alnwick lies on a river. Its castle was finished in 1309 by a duke."),
    ("bergen", "Bergen", "Bergen is a rainy harbour town. Sailors traded dried fish there for six centuries."),
    ("cahors", "Cahors", "Cahors is known for a fortified bridge with three towers, and for dark wine."),
    ("delft", "Delft", "Delft painters made blue tiles. A painter of the town left only thirty-five pictures."),
    ("evora", "Évora", "Évora has a chapel lined with bones and a Roman temple with fourteen columns."),
    (
        "star:fowey",
        "Fowey",
        "# Fowey\n\nFowey is a harbour.\n\n## History\n\nPirates sailed.\n\n### Ships\n\nTwo ships.",
    ),
]
QUERIES = ["harbour town", "bridge with towers", "who painted blue tiles?", "castle 1309", "evora bones"]


def write_corpus(path: Path, rows: Iterable[tuple[str, str, str]] = tuple(TOWNS)) -> Path:
    """Write (id, title, content) rows as a JSONL corpus."""
    lines = [json.dumps({"id": id_, "title": title, "content": content}) for id_, title, content in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_tiny_encoder(folder: Path, *, seed: int = 0, hidden: int = 32) -> Path:
    """A random BERT (2 layers) with a word-piece tokenizer over letters and the words of the towns, saved on disk."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = sorted(
        {word for row in TOWNS for word in "".join(c if c.isalnum() else " " for c in row[2]).lower().split()}
    )
    letters = [chr(code) for code in (*range(97, 123), *range(48, 58))]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = dict.fromkeys([*specials, *letters, *(f"##{letter}" for letter in letters), *words, ".", ",", "?", ":"])
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * hidden,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
    BertTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def write_tiny_cross_encoder(folder: Path, *, num_labels: int = 1) -> Path:
    """A random BERT that scores pairs of texts, saved on disk with the tokenizer of `write_tiny_encoder`."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    write_tiny_encoder(folder)
    config = BertConfig.from_pretrained(folder, num_labels=num_labels)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def config_for(kind: str, encoder: Path, **settings: int | str) -> IndexConfig:
    """Settings of an index over the towns."""
    return IndexConfig.model_validate({"kind": kind, "encoder": str(encoder), "passage_words": 12, **settings})


def build_towns(folder: Path, kind: str, encoder: Path, **settings: int | str) -> Path:
    """An index over the towns, in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = write_corpus(folder / f"{kind}-corpus.jsonl")
    build_index(corpus, folder / kind, config_for(kind, encoder, **settings))
    return folder / kind
