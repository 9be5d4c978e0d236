"""Every setting there is; `recipe.py` puts the sections together."""

from __future__ import annotations

from seekling.config.base import Section
from seekling.config.evaluation import EVALUATIONS, EvalConfig, ExpectedConfig
from seekling.config.recipe import RECIPES, Recipe, build_recipe, load_recipe, recipe_to_toml
from seekling.config.training import (
    CheckpointConfig,
    CriticConfig,
    CurriculumConfig,
    ExpertConfig,
    HealthConfig,
    JudgeConfig,
    RewardConfig,
    RlConfig,
    RolloutConfig,
    SftConfig,
    TrackingConfig,
)
from seekling.config.world import (
    DataConfig,
    EnvConfig,
    ModelConfig,
    RetrievalConfig,
    SandboxConfig,
    SearchServerConfig,
)

__all__ = [
    "EVALUATIONS",
    "RECIPES",
    "CheckpointConfig",
    "CriticConfig",
    "CurriculumConfig",
    "DataConfig",
    "EnvConfig",
    "EvalConfig",
    "ExpectedConfig",
    "ExpertConfig",
    "HealthConfig",
    "JudgeConfig",
    "ModelConfig",
    "Recipe",
    "RetrievalConfig",
    "RewardConfig",
    "RlConfig",
    "RolloutConfig",
    "SandboxConfig",
    "SearchServerConfig",
    "Section",
    "SftConfig",
    "TrackingConfig",
    "build_recipe",
    "load_recipe",
    "recipe_to_toml",
]
