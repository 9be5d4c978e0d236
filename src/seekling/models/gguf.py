"""Turns a llama-architecture GGUF file into a Hugging Face model directory, once.

Weights are de-quantised to float32, which loses nothing of what the file holds: a Q4_1 weight is `scale * q + minimum`
with float16 scale and minimum, more digits than bfloat16 keeps. Measured on SmolLM2-135M-Instruct with four chat
prompts, arithmetic in float32: rounding the weights to bfloat16 on disk moves logits by 0.038 on average and 0.28 at
most (same best token everywhere); float32 agrees bit for bit with transformers' own GGUF loader. It costs 538 MB of
disk instead of 269.

llama.cpp stores the rows of the query and key projections of llama models interleaved for its own rotary embedding;
they are put back in Hugging Face's order here. Only byte-level BPE tokenizers ("gpt2" in GGUF words) are understood.

transformers' own reader (`gguf_file=`) gives the same weights. Its tokenizers know no pre-tokenizer "smollm", which
splits digits (as of 5.23), so the directory is written here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seekling.errors import MissingExtraError, ModelError

if TYPE_CHECKING:
    from gguf import GGUFReader
    from tokenizers import Tokenizer

_CONTROL = 3
"""GGUF token type of special tokens."""

_OUTSIDE_BLOCKS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INSIDE_BLOCKS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The key/value part of a GGUF file, with types checked on the way out."""

    values: dict[str, object]
    path: Path

    def integer(self, key: str) -> int:
        """Return an integer value, or raise ModelError."""
        value = self.values.get(key)
        if not isinstance(value, int):
            raise ModelError(f"{self.path}: GGUF key {key} should be an integer, got {value!r}")
        return value

    def number(self, key: str) -> float:
        """Return a float value, or raise ModelError."""
        value = self.values.get(key)
        if not isinstance(value, int | float):
            raise ModelError(f"{self.path}: GGUF key {key} should be a number, got {value!r}")
        return float(value)

    def text(self, key: str) -> str:
        """Return a string value, or raise ModelError."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise ModelError(f"{self.path}: GGUF key {key} should be a string, got {value!r}")
        return value

    def texts(self, key: str) -> list[str]:
        """Return an array of strings, or raise ModelError."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelError(f"{self.path}: GGUF key {key} should be an array of strings")
        return value

    def integers(self, key: str) -> list[int]:
        """Return an array of integers, or raise ModelError."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise ModelError(f"{self.path}: GGUF key {key} should be an array of integers")
        return value


def convert_gguf(path: Path, out: Path) -> None:
    """Write config, tokenizer and float32 weights of a GGUF file as a Hugging Face directory.

    Args:
        path: the GGUF file; architecture llama, tokenizer model gpt2.
        out: an existing empty folder.

    Raises:
        ModelError: the file is not a GGUF of that kind, or holds a tensor we do not know.
        MissingExtraError: the gguf package is not installed.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise MissingExtraError("reading GGUF weights needs the gguf package: pip install 'seekling[train]'") from None
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"{path} is not a readable GGUF file: {error}") from None
    wanted = ("general.", "llama.", "tokenizer.")
    values: dict[str, object] = {
        name: field.contents() for name, field in reader.fields.items() if name.startswith(wanted)
    }
    header = GgufHeader(values, path)
    if header.text("general.architecture") != "llama" or header.text("tokenizer.ggml.model") != "gpt2":
        raise ModelError(
            f"{path}: only llama-architecture GGUF files with a gpt2 tokenizer can be converted, "
            f"got {header.text('general.architecture')!r} with {header.text('tokenizer.ggml.model')!r}"
        )
    is_tied = _write_weights(reader, header, out)
    _write_config(header, out, is_tied=is_tied)
    _write_tokenizer(header, out)


def _write_weights(reader: GGUFReader, header: GgufHeader, out: Path) -> bool:
    from gguf import dequantize
    from safetensors.numpy import save_file

    num_heads = header.integer("llama.attention.head_count")
    num_kv_heads = header.integer("llama.attention.head_count_kv")
    weights: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        name = _huggingface_name(tensor.name, header.path)
        weight = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if "q_proj" in name:
            weight = undo_rotary_permutation(weight, num_heads)
        elif "k_proj" in name:
            weight = undo_rotary_permutation(weight, num_kv_heads)
        weights[name] = weight
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return "lm_head.weight" not in weights


def undo_rotary_permutation(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Put the rows of a query or key projection back from llama.cpp's order into Hugging Face's.

    Within each head llama.cpp keeps the two halves of a rotated pair next to each other (rows 0,1,2,3 of a head of 4
    are Hugging Face's rows 0,2,1,3).

    Args:
        weight: (num_heads * head size, inputs), head size even.
        num_heads: heads of this projection; for keys the number of key/value heads.

    Returns:
        The same shape, rows reordered.

    Source: the inverse of `LlamaModel.permute` in llama.cpp's convert_hf_to_gguf.py.
    """
    pairs = weight.shape[0] // num_heads // 2
    by_pair = weight.reshape(num_heads, pairs, 2, *weight.shape[1:])
    return np.ascontiguousarray(by_pair.swapaxes(1, 2).reshape(weight.shape))


def _huggingface_name(name: str, path: Path) -> str:
    if name in _OUTSIDE_BLOCKS:
        return _OUTSIDE_BLOCKS[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in _INSIDE_BLOCKS:
        raise ModelError(f"{path}: unknown tensor {name!r}; only plain llama weights can be converted")
    return f"model.layers.{match[1]}.{_INSIDE_BLOCKS[match[2]]}.weight"


def _write_config(header: GgufHeader, out: Path, *, is_tied: bool) -> None:
    hidden = header.integer("llama.embedding_length")
    num_heads = header.integer("llama.attention.head_count")
    eos = header.integer("tokenizer.ggml.eos_token_id")
    bos = header.integer("tokenizer.ggml.bos_token_id")
    pad = _pad_token_id(header)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "head_dim": hidden // num_heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": hidden**-0.5,
        "intermediate_size": header.integer("llama.feed_forward_length"),
        "max_position_embeddings": header.integer("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": num_heads,
        "num_hidden_layers": header.integer("llama.block_count"),
        "num_key_value_heads": header.integer("llama.attention.head_count_kv"),
        "pretraining_tp": 1,
        "rms_norm_eps": float(f"{header.number('llama.attention.layer_norm_rms_epsilon'):.7g}"),
        "rope_scaling": None,
        "rope_theta": header.number("llama.rope.freq_base"),
        "tie_word_embeddings": is_tied,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": len(header.texts("tokenizer.ggml.tokens")),
    }
    generation = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", generation)


def _pad_token_id(header: GgufHeader) -> int:
    """Choose a special token that is neither the end of a turn nor its start.

    SmolLM2 names <|im_end|> for both padding and end of turn; a mask made from the padding id would then hide the
    token that ends every turn. The unknown token (<|endoftext|>) is free: byte-level BPE never produces it.
    """
    eos = header.integer("tokenizer.ggml.eos_token_id")
    named = header.values.get("tokenizer.ggml.padding_token_id")
    if isinstance(named, int) and named != eos:
        return named
    unknown = header.values.get("tokenizer.ggml.unknown_token_id")
    if isinstance(unknown, int) and unknown != eos:
        return unknown
    used = {eos, header.integer("tokenizer.ggml.bos_token_id")}
    for token_id, kind in enumerate(header.integers("tokenizer.ggml.token_type")):
        if kind == _CONTROL and token_id not in used:
            return token_id
    raise ModelError(f"{header.path}: no special token is left to pad with; padding must differ from the end token")


def _write_tokenizer(header: GgufHeader, out: Path) -> None:
    tokens = header.texts("tokenizer.ggml.tokens")
    _byte_level_bpe(header).save(str(out / "tokenizer.json"))
    named = {
        "bos_token": tokens[header.integer("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[header.integer("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[_pad_token_id(header)],
    }
    config = {
        "add_prefix_space": False,
        **named,
        "chat_template": header.text("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": header.integer("llama.context_length"),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    _write_json(out / "tokenizer_config.json", config)
    _write_json(out / "special_tokens_map.json", named)


def _byte_level_bpe(header: GgufHeader) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = header.texts("tokenizer.ggml.tokens")
    merges = [_pair(line) for line in header.texts("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    splitter: Callable[[], pre_tokenizers.PreTokenizer] | None = {
        "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]),
        "gpt-2": lambda: byte_level,
    }.get(header.text("tokenizer.ggml.pre"))
    if splitter is None:
        raise ModelError(f"{header.path}: unknown pre-tokenizer {header.text('tokenizer.ggml.pre')!r}")
    tokenizer.pre_tokenizer = splitter()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = header.integers("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
