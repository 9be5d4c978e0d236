"""`experts.file`: collected episodes or step-wise records in place of the scripted expert's.

What is trained on is copied into the run folder, so that the run can be read and resumed without the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from seekling.config import ExpertConfig, Recipe
from seekling.env.withholding import is_twin
from seekling.errors import ConfigError, DataError
from seekling.evaluate.result_files import read_records
from seekling.experts.scripted import first_plan, play
from seekling.experts.select import select_episodes
from seekling.experts.stepwise import read_steps, step_trajectory
from seekling.files import write_atomically
from seekling.pipeline.reporter import Reporter
from seekling.pipeline.run_folder import RunFolder
from seekling.pipeline.world import World
from seekling.reward.match import exact_match
from seekling.rollout.render import expert_trajectory, opening_trajectory
from seekling.serve.agent import Agent
from seekling.types import Episode, EpisodeGroup, EpisodeRecord, Question, Trajectory

STEPS = "expert-steps.json"
"""Copy of step-wise records in a run folder."""


def load_experts(recipe: Recipe, folder: RunFolder, world: World, agent: Agent, reporter: Reporter) -> None:
    """Select from the file what can be trained on, and put it into the run folder.

    Episodes get the prompt of this policy and protocol, so that SFT and RL see the same text. Left out are those of
    questions that are not this recipe's training questions, those longer than an episode may be, and what
    `select_episodes` drops.

    Raises:
        ConfigError: the episodes are of another protocol.
        DataError: the file is bad, or nothing of it can be trained on.
    """
    path = Path(recipe.experts.file)
    if path.suffix == ".json":
        _load_steps(path, recipe, folder, agent, reporter)
        return
    protocol, limit = agent.env.protocol, recipe.rollout.episode_tokens
    records = list(read_records(path))
    others = {each.episode.protocol for each in records} - {protocol.name}
    if others:
        raise ConfigError(f"{path} holds episodes of the protocol {min(others)}; this run's is {protocol.name}")
    trained = {question.key: question for question in world.train}
    prompted = [
        replace(each, episode=replace(each.episode, prompt=tuple(protocol.prompt(each.question)))) for each in records
    ]

    def refuse(record: EpisodeRecord) -> str:
        question = trained.get(record.question.key)
        if question is None or question.question != record.question.question:
            return "not a training question of this recipe"
        return (
            "longer than rollout.episode_tokens" if len(_trajectory(record.episode, agent).token_ids_T) > limit else ""
        )

    selection = select_episodes(
        prompted, balance=recipe.experts.balance, max_episodes=recipe.experts.max_episodes, refuse=refuse
    )
    if not selection.kept:
        raise DataError(f"{path} has nothing to train on: {selection}")
    folder.replace_records("expert", selection.kept)
    reporter.line(f"{path}: {selection}")


def expert_trajectories(folder: RunFolder, agent: Agent) -> list[Trajectory]:
    """What SFT trains on: the expert episodes of a run folder, or its step-wise records."""
    steps = folder.path / STEPS
    if steps.exists():
        stop_strings = agent.env.protocol.stops.strings
        return [step_trajectory(record, agent.renderer, stop_strings) for record in read_steps(steps)]
    return [_trajectory(record.episode, agent) for record in folder.read_records("expert")]


class SftQuestions(NamedTuple):
    """Training questions by what SFT learns from them."""

    played: Sequence[Question]
    """Whole episodes of the scripted expert."""
    planned: Sequence[Question]
    """Its plans alone; no withheld twins, whose plans are those of their questions."""
    fresh: Sequence[Question]
    """Nothing; no twins, whose share would teach RL to say "unknown" too often."""


def split_for_sft(config: ExpertConfig, questions: Sequence[Question]) -> SftQuestions:
    """Divide training questions, in their order, by what SFT learns from them."""
    played = questions[: 0 if config.file else config.num_questions]
    rest = questions[len(played) :]
    originals = [number for number, each in enumerate(rest) if not each.withheld][: config.num_plans]
    num_passed = originals[-1] + 1 if originals else 0
    fresh = [each for each in rest[num_passed:] if not is_twin(each)]
    return SftQuestions(played, [rest[number] for number in originals], fresh)


def questions_for_rl(recipe: Recipe, questions: Sequence[Question]) -> Sequence[Question]:
    """Those of training; with `rl.groups.fresh` without those that SFT learned from.

    Raises:
        ConfigError: none is left.
    """
    if not recipe.rl.groups.fresh:
        return questions
    fresh, experts = split_for_sft(recipe.experts, questions).fresh, recipe.experts
    if not fresh:
        raise ConfigError(
            f"rl.groups.fresh = true leaves no question for RL: SFT has {experts.num_questions} for episodes and "
            f"{experts.num_plans} for plans, and there are {len(questions)} training questions; lower "
            "experts.num_questions or experts.num_plans, or set rl.groups.fresh = false"
        )
    return fresh


def plan_trajectories(recipe: Recipe, questions: Sequence[Question], agent: Agent) -> list[Trajectory]:
    """The scripted expert's plans for the questions of which SFT learns no more than that."""
    made = []
    for question in split_for_sft(recipe.experts, questions).planned:
        texts = first_plan(agent.env, question, recipe.experts)
        if texts is not None:
            made.append(opening_trajectory(agent.env.protocol.prompt(question), *texts, agent.renderer))
    return made


def demonstrate(recipe: Recipe, agent: Agent, group: EpisodeGroup) -> tuple[Episode, Trajectory] | None:
    """The scripted expert's episode of a question that all of a group's episodes got wrong.

    None where it fails, is wrong or is longer than an episode may be.
    """
    question = group.question
    begun = group.episodes if recipe.rl.groups.demonstrations == "continued" else ()
    for after in (*begun, None):
        episode = play(agent.env, question, recipe.experts, title_of=agent.library.title_of, after=after).episode
        if episode is not None and exact_match(episode.answer, question.answers):
            trajectory = _trajectory(episode, agent)
            if len(trajectory.token_ids_T) <= recipe.rollout.episode_tokens:
                return episode, trajectory
    return None


def _trajectory(episode: Episode, agent: Agent) -> Trajectory:
    return expert_trajectory(episode, agent.env.protocol, agent.renderer)


def _load_steps(path: Path, recipe: Recipe, folder: RunFolder, agent: Agent, reporter: Reporter) -> None:
    protocol, limit, config = agent.env.protocol, recipe.rollout.episode_tokens, recipe.experts
    if config.balance != "none" or config.max_episodes:
        raise ConfigError(
            f"{path} holds step-wise records, from which experts.balance and experts.max_episodes cannot select; set "
            "them when the episodes are collected, or name those in experts.file"
        )
    if protocol.name != "tags":
        raise ConfigError(
            f"{path} holds step-wise records, which are of the tags protocol; this run's is {protocol.name}"
        )
    records = read_steps(path)
    lengths = [len(step_trajectory(each, agent.renderer, protocol.stops.strings).token_ids_T) for each in records]
    num_long = sum(length > limit for length in lengths)
    if num_long:
        raise DataError(
            f"{num_long} of the {len(records)} records of {path} are longer than rollout.episode_tokens = {limit} (up "
            f"to {max(lengths)}); raise it, or write the records again with seekling data stepwise --max-tokens {limit}"
        )
    write_atomically(folder.path / STEPS, path.read_text(encoding="utf-8"))
    reporter.line(f"{path}: {len(records)} step-wise records")
