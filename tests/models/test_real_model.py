"""SmolLM2-135M-Instruct itself: its words make sense and its tokenizer is the right one."""

from pathlib import Path

import pytest

from seekling.models import load_policy

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def policy(real_model_dir: Path):
    return load_policy(real_model_dir, dtype="float32")


def test_it_knows_the_capital_of_france_and_ends_its_turn(policy):
    model, tokenizer = policy
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False
    )
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    output = model.generate(**inputs, max_new_tokens=16, do_sample=False)
    assert tokenizer.decode(output[0, inputs["input_ids"].shape[1] :]) == "The capital of France is Paris.<|im_end|>"


def test_digits_are_single_tokens_and_special_tokens_are_whole(policy):
    _, tokenizer = policy
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("In 1984,")) == ["In", "Ġ", "1", "9", "8", "4", ","]
    assert tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n") == [1, 4093, 198, 26843, 2, 198]
