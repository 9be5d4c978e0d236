"""What this machine can do, and what a recipe will cost on it. Measures and predicts; changes nothing."""

from seekling.doctor.cost import CostModel, EpisodeSize, StageCost, episode_size, predict
from seekling.doctor.machine import Machine, Speed, free_bytes, look_at_machine, measure_speed
from seekling.doctor.memory import (
    Memory,
    MemoryPlan,
    Stage,
    episodes_at_once,
    episodes_of_group,
    longest_row_tokens,
    opened_memory,
)
from seekling.doctor.shape import SMOLLM2_135M, ModelShape, read_model_shape

__all__ = [
    "SMOLLM2_135M",
    "CostModel",
    "EpisodeSize",
    "Machine",
    "Memory",
    "MemoryPlan",
    "ModelShape",
    "Speed",
    "Stage",
    "StageCost",
    "episode_size",
    "episodes_at_once",
    "episodes_of_group",
    "free_bytes",
    "longest_row_tokens",
    "look_at_machine",
    "measure_speed",
    "opened_memory",
    "predict",
    "read_model_shape",
]
