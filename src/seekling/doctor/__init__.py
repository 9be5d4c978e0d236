"""What this machine can do, and what a recipe will cost on it. Measures and predicts; changes nothing."""

from seekling.doctor.cost import CostModel, EpisodeSize, StageCost, episode_size, must_checkpoint, predict
from seekling.doctor.machine import Machine, Speed, look_at_machine, measure_speed
from seekling.doctor.shape import SMOLLM2_135M, ModelShape, read_model_shape

__all__ = [
    "SMOLLM2_135M",
    "CostModel",
    "EpisodeSize",
    "Machine",
    "ModelShape",
    "Speed",
    "StageCost",
    "episode_size",
    "look_at_machine",
    "measure_speed",
    "must_checkpoint",
    "predict",
    "read_model_shape",
]
