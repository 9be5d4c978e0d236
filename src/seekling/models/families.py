"""Model families that sampler and learner compute as transformers does, and how each makes logits of hidden states.

Both run decoder and output layer apart, with an attention of their own: what a family does beside that would be lost
without a word. So only families that `tests/models/test_families.py` has compared with transformers are let in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from seekling.errors import ModelError


@dataclass(frozen=True, slots=True)
class Head:
    """Logits of hidden states; the one that sampler, learner, reference and critic's policy have."""

    layer: nn.Module
    scale: float = 1.0
    cap: float = 0.0
    """Logits are bounded by it: tanh(logits / cap) * cap; 0: they are not."""

    def __call__(self, hidden: Tensor) -> Tensor:
        """(..., D) hidden states to (..., V) logits, before any temperature."""
        logits: Tensor = self.layer(hidden)
        if self.scale != 1:
            logits = logits.mul_(self.scale)
        # The product is not in place: the backward pass needs the tanh.
        return logits.div_(self.cap).tanh_().mul(self.cap) if self.cap else logits


_PLAIN = (
    *("apertus", "arcee", "ernie4_5", "exaone4", "gemma", "glm", "glm4", "helium", "hunyuan_v1_dense", "llama"),
    *("ministral3", "mistral", "olmo", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen3", "qwen3_moe", "seed_oss"),
    *("smollm3", "starcoder2"),
)
_CAPPED = "gemma2", "gemma3_text", "nanochat"
FAMILIES: dict[str, Callable[[Any], dict[str, float]]] = {
    **dict.fromkeys(_PLAIN, lambda config: {}),
    **dict.fromkeys(_CAPPED, lambda config: {"cap": config.final_logit_softcapping or 0.0}),
    **dict.fromkeys(("cohere", "cohere2"), lambda config: {"scale": config.logit_scale}),
    "granite": lambda config: {"scale": 1 / config.logits_scaling},
    "hyperclovax": lambda config: {"scale": config.logits_scaling},
}
"""What of a configuration makes the head, by transformers' `model_type`."""


def head_of(model: PreTrainedModel) -> Head:
    """The head of a model whose family is known.

    Raises:
        ModelError: the family, or something in the model's configuration, is computed otherwise here.
    """
    config = model.config
    family, problem = config.model_type, _problem(config)
    if problem:
        raise ModelError(
            f"models of the family {family!r} are not supported: {problem}. Take one of a family listed in "
            f"docs/ENGINE.md: {', '.join(sorted(FAMILIES))}"
        )
    layer = model.get_output_embeddings()
    assert isinstance(layer, nn.Module)
    return Head(layer, **FAMILIES[family](config))


def _problem(config: Any) -> str:
    stateful = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"})
    if stateful:
        return f"it has layers of the kind {', '.join(stateful)}, which keep another state than keys and values"
    cap = getattr(config, "attn_logit_softcapping", None)
    if cap:
        return f"it caps attention scores (attn_logit_softcapping = {cap:g}), which our attention does not"
    if getattr(config, "use_bidirectional_attention", False):
        return "its tokens attend to later ones (use_bidirectional_attention)"
    if config.model_type not in FAMILIES:
        return "nobody has shown that its log-probabilities here are those of transformers"
    return ""


def longest_exact(config: PreTrainedConfig) -> tuple[int, str] | None:
    """How many tokens a sequence may have that transformers computes as we do, and what it does beyond; None: any."""
    limits = []
    window = getattr(config, "sliding_window", None)
    if window and "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"]):
        limits.append((int(window), f"the model attends to the last {window} tokens only"))
    rope = getattr(config, "rope_parameters", None) or {}
    for each in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if each.get("rope_type") in ("dynamic", "longrope"):
            length = int(each.get("original_max_position_embeddings") or config.max_position_embeddings)
            limits.append((length, f"the model turns all positions otherwise in texts of more than {length} tokens"))
    return min(limits, default=None)
