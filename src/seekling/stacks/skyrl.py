"""SkyRL-gym: importing this registers the environment "seekling". Rows are those of `seekling data parquet`."""

from __future__ import annotations

from collections.abc import Mapping

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType

from seekling.stacks.environment import NAME, TextEpisode, open_row


class SearchTextEnv(BaseTextEnv):
    """One episode. The prompt is that of the protocol, whatever the row says.

    `env_config` may name a `recipe`, another run folder than the row does. DataError: the row is not one of `seekling
    data parquet`.
    """

    def __init__(self, env_config: Mapping[str, str], extras: Mapping[str, object]) -> None:
        super().__init__()
        environment, question = open_row(extras.get("extra_info"), recipe=env_config.get("recipe") or "")
        self.max_turns = environment.recipe.env.max_turns
        self._episode = TextEpisode(environment, question)
        self._metrics: dict[str, float] = {}

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, object]]:
        """The first messages."""
        return [{"role": each.role, "content": each.content} for each in self._episode.messages], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take one turn; the last one brings the episode's reward. Raises as `TextEpisode.step`."""
        self.turns += 1
        step = self._episode.step(action)
        said = [{"role": step.observation.role, "content": step.observation.content}] if step.observation else []
        reward = step.reward.total if step.reward else 0.0
        self._metrics = dict(step.metrics)
        return BaseTextEnvStepOutput(observations=said, reward=reward, done=step.episode is not None, metadata={})

    def get_metrics(self) -> dict[str, float]:
        """Of the finished episode."""
        return self._metrics

    def close(self) -> None:
        """Give up what the episode holds."""
        self._episode.close()


skyrl_gym.register(id=NAME, entry_point="seekling.stacks.skyrl:SearchTextEnv")
