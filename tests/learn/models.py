"""A very small Llama made from its configuration alone, trajectories, and plain unpacked passes to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from seekling.types import Trajectory

VOCABULARY = 61


def small_model(seed: int = 0, *, dtype: torch.dtype = torch.float32, tied: bool = True) -> PreTrainedModel:
    """The same weights for the same seed: 2 layers, hidden 32, 4 heads on 2 key/value heads."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype).eval()


def trajectory(token_ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float] | None = None) -> Trajectory:
    """From plain lists; log-probabilities default to -1 where trained."""
    values = [-1.0 * bool(each) for each in mask] if logprobs is None else logprobs
    return Trajectory(np.asarray(token_ids, np.int64), np.asarray(mask, bool), np.asarray(values, np.float32))


def group(seed: int, *, num: int = 4, prompt: int = 12, tail: int = 9) -> list[Trajectory]:
    """Trajectories with a common prompt, some with a common first action, observations untrained."""
    rng = np.random.default_rng(seed)
    start = rng.integers(3, VOCABULARY, prompt).tolist()
    first = rng.integers(3, VOCABULARY, 4).tolist()
    made = []
    for number in range(num):
        action = first if number % 2 else rng.integers(3, VOCABULARY, 4).tolist()
        rest = rng.integers(3, VOCABULARY, tail + number).tolist()
        mask = [0] * prompt + [1] * 4 + [0] * 3 + [1] * (len(rest) - 3)
        logprobs = np.where(mask, rng.uniform(-5, -1, len(mask)), 0.0)
        made.append(trajectory([*start, *action, *rest], mask, logprobs.tolist()))
    return made


def plain_logprobs(model: PreTrainedModel, each: Trajectory) -> Tensor:
    """Log-probabilities of the trained tokens from a forward pass over this sequence alone, with gradients."""
    ids = torch.from_numpy(each.token_ids_T)
    logits_TV = model(input_ids=ids[None], use_cache=False).logits[0].float()
    trained = torch.from_numpy(np.flatnonzero(each.train_mask_T[1:]) + 1)
    result: Tensor = torch.log_softmax(logits_TV, -1)[trained - 1, ids[trained]]
    return result


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    """Copies of all gradients by parameter name."""
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_close_gradients(found: dict[str, Tensor], expected: dict[str, Tensor], relative: float) -> None:
    """Each tensor within `relative` of its largest entry."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        bound = relative * float(tensor.abs().max())
        assert bound > 0, name
        assert float((found[name].float() - tensor.float()).abs().max()) <= bound, name
