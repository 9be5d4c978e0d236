"""Evaluation of a policy on questions: every episode is written as it ends, an interrupted evaluation goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seekling.config import Recipe
from seekling.errors import ConfigError
from seekling.evaluate.files import write_summary
from seekling.evaluate.intervals import format_rate
from seekling.evaluate.summary import EvalSettings, EvalSummary, summarize
from seekling.models import resolve_model
from seekling.pipeline.progress import Reporter
from seekling.pipeline.record import describe_run
from seekling.pipeline.run_folder import RunFolder
from seekling.pipeline.world import open_world
from seekling.reward.functions import score_episode
from seekling.serve.agent import Agent, eval_decoding, open_agent
from seekling.types import EpisodeGroup, EpisodeRecord, Question, StopReason


def evaluate_model(recipe: Recipe, path: Path, name: str, reporter: Reporter) -> EvalSummary:
    """Evaluate the recipe's model by itself, in a run folder of its own.

    Args:
        recipe: its model, data, retrieval, env, rollout and eval sections count.
        path: the run folder.
        name: of the policy in the files.
        reporter: for progress.

    Raises:
        ConfigError: the name cannot be part of a file name.
    """
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"--name {name!r} becomes part of a file name; use letters, digits, - and _")
    folder = RunFolder(path, recipe)
    world = open_world(recipe, path, reporter)
    model_dir = resolve_model(recipe.model.spec, log=reporter.line)
    with open_agent(recipe, world.library, model_dir) as agent:
        summary = evaluate_policy(recipe, folder, agent, world.test, name, reporter)
        folder.write_record(describe_run(recipe, folder, world, agent, model_dir))
    return summary


def evaluate_policy(
    recipe: Recipe, folder: RunFolder, agent: Agent, questions: Sequence[Question], name: str, reporter: Reporter
) -> EvalSummary:
    """Ask the questions that are not answered in the folder yet, then write all in order, and the summary.

    Args:
        recipe: its eval, rollout and env sections count.
        folder: where `episodes/eval-<name>.jsonl` and `eval/<name>.json` go.
        agent: its sampler holds the policy.
        questions: all of them, in the order of the files.
        name: of the policy.
        reporter: for progress.
    """
    stage = f"eval-{name}"
    done = {record.question.key for record in folder.read_records(stage)}
    with reporter.track(stage, len(questions), done=len(done)) as advance:

        def on_group(group: EpisodeGroup) -> None:
            folder.append_records(_scored(stage, group))
            advance("")

        agent.roller.rollout(
            [question for question in questions if question.key not in done],
            eval_decoding(recipe),
            seed=recipe.seed,
            on_group=on_group,
        )
    by_key = {record.question.key: record for record in folder.read_records(stage)}
    folder.replace_records(stage, [by_key[question.key] for question in questions])
    summary = read_summary_of(recipe, folder, name)
    write_summary(folder.path, summary)
    reporter.line(f"{name}: EM {format_rate(summary.em)}")
    return summary


def read_summary_of(recipe: Recipe, folder: RunFolder, name: str) -> EvalSummary:
    """Summarise the episodes of a finished evaluation."""
    return summarize(folder.read_records(f"eval-{name}"), settings=EvalSettings.from_recipe(recipe))


def _scored(stage: str, group: EpisodeGroup) -> list[EpisodeRecord]:
    """Scored records of a question's episodes; infrastructure failures are kept without scores."""
    return [
        EpisodeRecord(
            stage,
            group.question,
            episode,
            scores={} if episode.stop_reason is StopReason.INFRA_FAILURE else score_episode(episode, group.question),
        )
        for episode in (*group.episodes, *group.failed)
    ]
