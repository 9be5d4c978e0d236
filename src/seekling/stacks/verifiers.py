"""verifiers (0.4, its `verifiers.v1`): the environment is the policy's user, turn by turn.

verifiers finds an environment by the name of a top-level module, so `seekling_env` exports these classes once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from verifiers import v1 as vf

from seekling.stacks.environment import Split, Step, TextEpisode, open_environment, open_row
from seekling.types import StopReason


class SearchTasksetConfig(vf.TasksetConfig):
    """Which questions are asked; see `open_environment`."""

    id: str = "seekling-env"
    recipe: str = ""
    overrides: tuple[str, ...] = ()
    out: str = ""
    split: Split = "train"


class SearchData(vf.TaskData):
    """A question in verifiers' form."""

    extra_info: dict[str, str]


class SearchTask(vf.Task[SearchData, vf.State, vf.TaskConfig]):
    """Nothing of its own: the environment records the reward."""


class SearchTaskset(vf.Taskset[SearchTask, SearchTasksetConfig]):
    """The recipe's questions."""

    def load(self) -> Iterator[SearchTask]:
        """Yield them in the recipe's order."""
        config = self.config
        environment = open_environment(config.recipe, config.overrides, out=config.out)
        world = environment.world()
        for question in {"train": world.train, "dev": world.dev, "test": world.test}[config.split]:
            prompt = environment.env.protocol.prompt(question)
            system = "\n\n".join(each.content for each in prompt if each.role == "system")
            data = SearchData(
                id=f"{question.source}/{question.id}",
                system_prompt=system or None,
                prompt="\n\n".join(each.content for each in prompt if each.role != "system"),
                extra_info=environment.extra_info(question, config.split),
            )
            yield SearchTask(data, config.task)


class SearchEnvConfig(vf.EnvConfig):
    """One policy, without tools of verifiers' own: actions are text in the recipe's protocol."""

    taskset: SearchTasksetConfig = SearchTasksetConfig()
    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())


class SearchEnv(vf.Env[SearchEnvConfig]):
    """The recipe's environment answers each action; the recipe's reward scores the episode."""

    async def run(self, task: SearchTask, agents: vf.Agents) -> None:
        """Play one episode; what `TextEpisode.step` raises, verifiers records as the failure of the episode."""
        environment, question = await asyncio.to_thread(open_row, task.data.extra_info)
        step, episode = Step(None), TextEpisode(environment, question)
        try:
            async with agents.agent.interaction(task) as interaction:
                segment = await interaction.turn()
                while step.episode is None and not segment.terminated:
                    is_cut = interaction.trace.calls[-1].finish_reason == "length"
                    step = await asyncio.to_thread(episode.step, segment.last_reply, is_cut=is_cut)
                    if step.observation is not None:
                        segment = await interaction.turn(step.observation.content.strip())
            trace = interaction.trace
            if step.episode is None and not trace.has_error:  # a limit of verifiers
                step = episode.end(StopReason.MAX_TOKENS)
        finally:
            episode.close()
        if step.episode is not None and step.reward is not None:
            for name, value in step.reward.parts.items():
                trace.record_reward(name, value)
            trace.record_metrics(step.metrics)
            trace.info["stop_reason"] = str(step.episode.stop_reason)


def load_environment(recipe: str, overrides: Sequence[str] = (), *, out: str = "", split: Split = "train") -> vf.Env:
    """The recipe as an environment of verifiers; see `open_environment`. `split`: which questions are asked."""
    taskset = SearchTasksetConfig(recipe=recipe, overrides=tuple(overrides), out=out, split=split)
    return vf.load_environment(SearchEnvConfig(taskset=taskset))
