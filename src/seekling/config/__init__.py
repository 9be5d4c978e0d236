"""Every setting there is; `recipe.py` puts the sections together."""

from __future__ import annotations

from seekling.config.base import EndpointConfig, JudgeConfig, Section
from seekling.config.evaluation import EVALUATIONS, EvalConfig, EvalRolloutConfig, ExpectedConfig
from seekling.config.recipe import RECIPES, Recipe, build_recipe, load_recipe, recipe_to_toml
from seekling.config.rl import (
    AdvantageConfig,
    CriticConfig,
    GroupConfig,
    HealthConfig,
    LossConfig,
    OptimizerConfig,
    RewardConfig,
    RlConfig,
)
from seekling.config.training import (
    CheckpointConfig,
    ExpertConfig,
    RolloutConfig,
    ScaleConfig,
    SftConfig,
    TrackingConfig,
)
from seekling.config.world import (
    DataConfig,
    EnvConfig,
    IndexConfig,
    MixConfig,
    ModelConfig,
    QuestionsConfig,
    RetrievalConfig,
    SandboxConfig,
    SearchServerConfig,
    ServeConfig,
)

__all__ = ["EVALUATIONS", "RECIPES", "AdvantageConfig", "CheckpointConfig", "CriticConfig", "DataConfig"]
__all__ += ["EndpointConfig", "EnvConfig", "EvalConfig", "EvalRolloutConfig", "ExpectedConfig", "ExpertConfig"]
__all__ += ["GroupConfig", "HealthConfig", "IndexConfig", "JudgeConfig", "LossConfig", "MixConfig", "ModelConfig"]
__all__ += ["OptimizerConfig", "QuestionsConfig", "Recipe", "RetrievalConfig", "RewardConfig", "RlConfig"]
__all__ += ["RolloutConfig", "SandboxConfig", "ScaleConfig", "SearchServerConfig", "Section", "ServeConfig"]
__all__ += ["SftConfig", "TrackingConfig", "build_recipe", "load_recipe", "recipe_to_toml"]
