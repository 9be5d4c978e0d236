"""Writes a policy as a GGUF file, which llama.cpp and what is built on it load.

Only the Llama architecture, and byte-level BPE that splits as `gguf.splitters` does (SmolLM2 and its like): what
llama.cpp would compute or cut otherwise is refused, never guessed. Tensors are written one by one, so memory holds one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np

from seekling.errors import MissingExtraError, ModelError
from seekling.files import replacing
from seekling.models.gguf import splitters

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

Bits = Literal[8, 16, 32]
_ELSEWHERE = "export the folder with --out and try llama.cpp's own convert_hf_to_gguf.py on it"


class _Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    read: Callable[[], np.ndarray]


def write_gguf(model_dir: Path, out: Path, *, bits: Bits = 16, name: str = "") -> str:
    """Write, or replace, one GGUF file of a model directory, its tokenizer and chat template.

    Matrices get so many bits: 16, bfloat16 where the weights are, else float16; 32, float32; 8, Q8_0, blocks of 32
    weights with a scale of their own. Vectors stay float32. `name` is for people who look at the file.

    Returns:
        The kind of the matrices, such as BF16.

    Raises:
        ModelError: another architecture, or one of its parts or its tokenizer cannot be written.
        MissingExtraError: the gguf package is not installed.
    """
    try:
        from gguf import GGUFWriter, LlamaFileType
        from gguf.quants import quant_shape_to_byte_shape, quantize
    except ImportError as error:
        raise MissingExtraError(f"writing GGUF needs {error.name}: pip install 'seekling[train]'") from None
    from transformers import AutoConfig

    from seekling.models.load import load_tokenizer

    config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
    _check(config)
    tensors = list(_tensors(model_dir, config, bits))
    kind = max((tensor.kind for tensor in tensors if len(tensor.shape) > 1), default=tensors[0].kind).name
    with replacing(out) as building:
        writer = GGUFWriter(building, "llama")
        writer.add_name(name or model_dir.name)
        writer.add_file_type(LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"])
        _add_shape(writer, config)
        _add_tokenizer(writer, load_tokenizer(model_dir), config.vocab_size)
        for tensor in tensors:
            shape = quant_shape_to_byte_shape(tensor.shape, tensor.kind)
            writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), math.prod(shape), raw_dtype=tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            writer.write_tensor_data(quantize(tensor.read(), tensor.kind))
        writer.close()
    return kind


def _check(config: PreTrainedConfig) -> None:
    rope = config.rope_parameters or {}
    wrong = {
        f"of the family {config.model_type!r}": config.model_type != "llama",
        f"with positions of the kind {rope.get('rope_type')!r}": rope.get("rope_type", "default") != "default",
        f"with the activation {getattr(config, 'hidden_act', '')!r}": getattr(config, "hidden_act", "silu") != "silu",
    }
    found = [words for words, is_wrong in wrong.items() if is_wrong]
    if found:
        raise ModelError(f"a GGUF file is written of plain Llama models; this one is {found[0]}: {_ELSEWHERE}")


def _tensors(model_dir: Path, config: PreTrainedConfig, bits: Bits) -> Iterator[_Tensor]:
    """The weights under llama.cpp's names, rows of queries and keys in its order."""
    from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map
    from safetensors import safe_open

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    files = sorted(model_dir.glob("*.safetensors"))
    for file in files:
        weights = safe_open(file, framework="pt")
        for key in weights.keys():  # noqa: SIM118 - it is no dict
            stored = weights.get_slice(key)
            shape = tuple(stored.get_shape())
            if key == "lm_head.weight" and config.tie_word_embeddings:
                continue
            name = names.get_name(key, try_suffixes=(".weight", ".bias"))
            if name is None:
                raise ModelError(f"{file} has a weight {key!r} that Llama has not; {_ELSEWHERE}")
            chosen = {8: "Q8_0", 16: "BF16" if stored.get_dtype() == "BF16" else "F16", 32: "F32"}[bits]
            kind = GGMLQuantizationType["F32" if len(shape) == 1 else chosen]
            if kind is GGMLQuantizationType.Q8_0 and shape[-1] % 32:
                kind = GGMLQuantizationType.F16
            projection = key.split(".")[-2]

            def read(key: str = key, num_heads: int = heads.get(projection, 0), file: Path = file) -> np.ndarray:
                array: np.ndarray = safe_open(file, framework="pt").get_tensor(key).float().numpy()
                return _interleaved(array, num_heads) if num_heads else array

            yield _Tensor(name, shape, kind, read)
    if not files:
        raise ModelError(f"{model_dir} holds no .safetensors; expected what `seekling export` or transformers writes")


def _interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of a query or key projection, from halves that are turned together to neighbours that are.

    Source: `LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py.
    """
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def _add_shape(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    for add in (writer.add_rope_dimension_count, writer.add_key_length, writer.add_value_length):
        add(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _add_tokenizer(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    from gguf import TokenType

    data = json.loads(tokenizer.backend_tokenizer.to_str())
    known = {name: json.loads(each.__getstate__()) for name, each in splitters().items()}
    name = next((name for name, each in known.items() if each == data["pre_tokenizer"]), None)
    if data["model"]["type"] != "BPE" or data["normalizer"] is not None or name is None:
        raise ModelError(f"a GGUF file is written for byte-level BPE that splits as {' or '.join(known)}; {_ELSEWHERE}")
    added = {each["id"]: each for each in data["added_tokens"]}
    tokens = cast("list[str]", tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
    kinds = [TokenType.NORMAL] * len(tokens)
    for number, each in added.items():
        kinds[number] = TokenType.CONTROL if each["special"] else TokenType.USER_DEFINED
    missing = range(len(tokens), vocab_size)  # rows of the embedding that no token has
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list([*tokens, *(f"[PAD{number}]" for number in missing)])
    writer.add_token_types([*kinds, *(TokenType.UNUSED for _ in missing)])
    writer.add_token_merges([" ".join(pair) for pair in data["model"]["merges"]])
    for number, add in (
        (tokenizer.bos_token_id, writer.add_bos_token_id),
        (tokenizer.eos_token_id, writer.add_eos_token_id),
        (tokenizer.pad_token_id, writer.add_pad_token_id),
        (tokenizer.unk_token_id, writer.add_unk_token_id),
    ):
        if number is not None:
            add(number)
    begins = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    writer.add_add_bos_token(begins)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)
