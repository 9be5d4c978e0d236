"""Episode x Question -> Reward: pure functions of what the policy wrote."""

from seekling.reward.functions import RewardFunction, make_reward, score_answer, score_episode
from seekling.reward.match import exact_match, f1, is_vacuous, normalize_answer, substring
from seekling.reward.rouge import rouge_l

__all__ = [
    "RewardFunction",
    "exact_match",
    "f1",
    "is_vacuous",
    "make_reward",
    "normalize_answer",
    "rouge_l",
    "score_answer",
    "score_episode",
    "substring",
]
