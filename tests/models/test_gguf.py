"""A GGUF file becomes the same configuration and tokenizer; for its weights see tests/pipeline/test_package.py."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaForCausalLM

from seekling.errors import ModelError
from seekling.models.gguf import _pad_token_id, convert_gguf
from seekling.models.gguf_write import write_gguf


@pytest.fixture(scope="module")
def converted(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(tiny_model_dir, folder / "tiny.gguf", bits=32)
    (folder / "out").mkdir()
    convert_gguf(folder / "tiny.gguf", folder / "out")
    return folder / "out"


def test_the_config_comes_back(tiny_model_dir: Path, converted: Path):
    original = LlamaForCausalLM.from_pretrained(tiny_model_dir).config
    back = LlamaForCausalLM.from_pretrained(converted).config
    for name in (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings"),
        *("eos_token_id", "rope_parameters", "architectures"),
    ):
        assert getattr(back, name) == getattr(original, name), name


@pytest.fixture(scope="module")
def tokenizer_pair(tiny_model_dir: Path, converted: Path):
    return AutoTokenizer.from_pretrained(tiny_model_dir), AutoTokenizer.from_pretrained(converted)


@given(st.text(max_size=60))
def test_any_text_becomes_the_same_ids_as_with_the_original_tokenizer(tokenizer_pair, text: str):
    original, back = tokenizer_pair
    ids = back.encode(text, add_special_tokens=False)
    assert ids == original.encode(text, add_special_tokens=False)
    assert back.decode(ids) == text


def test_padding_differs_from_the_end_token_even_where_the_file_says_otherwise():
    named = {f"tokenizer.ggml.{name}_token_id": number for name, number in (("eos", 2), ("padding", 2), ("unknown", 0))}
    assert _pad_token_id(named) == 0  # as SmolLM2's file has it
    assert _pad_token_id(named | {"tokenizer.ggml.padding_token_id": 1}) == 1


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100])
def test_a_file_that_is_no_gguf_is_one_clear_error(tmp_path: Path, content: bytes):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="is not a GGUF file that can be converted"):
        convert_gguf(tmp_path / "m.gguf", tmp_path)
