"""Episode x Question -> Reward: pure functions of what the policy wrote."""

from seekling.reward.functions import make_reward, score_answer, score_episode

__all__ = ["make_reward", "score_answer", "score_episode"]
