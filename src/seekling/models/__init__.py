"""Where models come from: a spec becomes a local directory, a directory becomes a policy in memory."""

from seekling.models.cache import cache_home
from seekling.models.load import (
    load_model,
    load_policy,
    load_pretrained,
    load_tokenizer,
    pick_device,
    pick_dtype,
    use_transformers,
)
from seekling.models.resolve import cached_model, hub_answers, resolve_model
from seekling.models.wheel import package_index_answers

__all__ = [
    "cache_home",
    "cached_model",
    "hub_answers",
    "load_model",
    "load_policy",
    "load_pretrained",
    "load_tokenizer",
    "package_index_answers",
    "pick_device",
    "pick_dtype",
    "resolve_model",
    "use_transformers",
]
