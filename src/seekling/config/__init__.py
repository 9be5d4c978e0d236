"""Every setting there is; `recipe.py` puts the sections together."""

from __future__ import annotations

from seekling.config.base import Section
from seekling.config.endpoint import (
    EndpointConfig,
    JudgeConfig,
)
from seekling.config.evaluation import (
    EVALUATIONS,
    EvalConfig,
    EvalRolloutConfig,
    ExpectedConfig,
)
from seekling.config.recipe import (
    RECIPES,
    Recipe,
    build_recipe,
    load_recipe,
    recipe_to_toml,
)
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
from seekling.config.scale import ScaleConfig
from seekling.config.training import (
    CheckpointConfig,
    ExpertConfig,
    RolloutConfig,
    SftConfig,
    TrackingConfig,
)
from seekling.config.world import (
    DataConfig,
    EnvConfig,
    IndexConfig,
    ModelConfig,
    QuestionsConfig,
    RetrievalConfig,
    SandboxConfig,
    SearchServerConfig,
    ServeConfig,
)

__all__ = [
    "EVALUATIONS",
    "RECIPES",
    "AdvantageConfig",
    "CheckpointConfig",
    "CriticConfig",
    "DataConfig",
    "EndpointConfig",
    "EnvConfig",
    "EvalConfig",
    "EvalRolloutConfig",
    "ExpectedConfig",
    "ExpertConfig",
    "GroupConfig",
    "HealthConfig",
    "IndexConfig",
    "JudgeConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "QuestionsConfig",
    "Recipe",
    "RetrievalConfig",
    "RewardConfig",
    "RlConfig",
    "RolloutConfig",
    "SandboxConfig",
    "ScaleConfig",
    "SearchServerConfig",
    "Section",
    "ServeConfig",
    "SftConfig",
    "TrackingConfig",
    "build_recipe",
    "load_recipe",
    "recipe_to_toml",
]
