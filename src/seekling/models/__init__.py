"""Where models come from: a spec becomes a local directory, a directory becomes a policy in memory."""

from seekling.models.cache import cache_home
from seekling.models.load import load_policy, pick_dtype
from seekling.models.resolve import resolve_model

__all__ = ["cache_home", "load_policy", "pick_dtype", "resolve_model"]
