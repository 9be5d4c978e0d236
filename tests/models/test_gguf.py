"""A GGUF file becomes the same model that transformers saved, weight for weight and token for token."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaForCausalLM

from seekling.errors import ModelError
from seekling.models.gguf import convert_gguf

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def llama_cpp_permutation(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """As convert_hf_to_gguf.py of llama.cpp writes it."""
    shape = (num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(model_dir: Path, path: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(model_dir)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in tokenizer.all_special_tokens else 1 for token in tokens])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.eos_token_id)  # as SmolLM2 does
    writer.add_unk_token_id(tokenizer.unk_token_id)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.state_dict().items():
        weight = tensor.numpy()
        if name == "lm_head.weight":
            continue  # tied
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            weight = np.ascontiguousarray(llama_cpp_permutation(weight, heads))
        writer.add_tensor(gguf_name(name), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    outside = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in outside:
        return outside[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"


@pytest.fixture(scope="module")
def converted(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(tiny_model_dir, folder / "tiny.gguf")
    (folder / "out").mkdir()
    convert_gguf(folder / "tiny.gguf", folder / "out")
    return folder / "out"


def test_every_weight_comes_back_exactly(tiny_model_dir: Path, converted: Path):
    original = LlamaForCausalLM.from_pretrained(tiny_model_dir).state_dict()
    back = LlamaForCausalLM.from_pretrained(converted).state_dict()
    assert sorted(back) == sorted(original)
    for name, weight in original.items():
        np.testing.assert_array_equal(back[name].numpy(), weight.numpy(), err_msg=name)


def test_the_config_comes_back(tiny_model_dir: Path, converted: Path):
    original = LlamaForCausalLM.from_pretrained(tiny_model_dir).config
    back = LlamaForCausalLM.from_pretrained(converted).config
    for name in (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings"),
        *("eos_token_id", "rope_parameters", "architectures"),
    ):
        assert getattr(back, name) == getattr(original, name), name


@given(st.text(max_size=60))
def test_any_text_becomes_the_same_ids_as_with_the_original_tokenizer(tokenizer_pair, text: str):
    original, back = tokenizer_pair
    ids = back.encode(text, add_special_tokens=False)
    assert ids == original.encode(text, add_special_tokens=False)
    assert back.decode(ids) == text


@pytest.fixture(scope="module")
def tokenizer_pair(tiny_model_dir: Path, converted: Path):
    return AutoTokenizer.from_pretrained(tiny_model_dir), AutoTokenizer.from_pretrained(converted)


def test_padding_differs_from_the_end_token_even_where_the_file_says_otherwise(tokenizer_pair):
    _, back = tokenizer_pair
    assert back.eos_token == "<|im_end|>"
    assert back.pad_token == "<|endoftext|>"
    assert back.chat_template == TEMPLATE


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100])
def test_a_file_that_is_no_gguf_is_one_clear_error(tmp_path: Path, content: bytes):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="is not a GGUF file that can be converted"):
        convert_gguf(tmp_path / "m.gguf", tmp_path)
