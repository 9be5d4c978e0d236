"""One `seekling eval`: which policy, on which questions, how often, judged by whom, at what price."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from seekling.config import EndpointConfig, JudgeConfig, Recipe
from seekling.corpus.questions import question_set_hash, read_questions
from seekling.corpus.splits import with_shared_text
from seekling.env.environment import SearchEnv
from seekling.errors import ConfigError, DataError
from seekling.evaluate.bounds import PlainProtocol, gold_passages
from seekling.evaluate.compare import SampleSummary, summarize_samples
from seekling.evaluate.confidence import read_calibration
from seekling.evaluate.result_files import read_records
from seekling.evaluate.settings import EvalSettings, Mode
from seekling.evaluate.summary import EvalSummary
from seekling.files import write_atomically
from seekling.models import resolve_model
from seekling.pipeline.asking import Extras, QuestionRoller, ask_and_score, num_passages_of
from seekling.pipeline.judge_reward import open_judge
from seekling.pipeline.reporter import Reporter
from seekling.pipeline.run_folder import RunFolder
from seekling.pipeline.run_record import describe_evaluation
from seekling.pipeline.served import claim, open_env, token_counter
from seekling.pipeline.world import World, open_world
from seekling.rollout.chat import ChatClient, Price
from seekling.rollout.chat_roller import ChatRoller
from seekling.rollout.sampler import derive_seed
from seekling.serve.agent import eval_decoding, open_agent
from seekling.types import Json, Question


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """What `seekling eval` is asked for besides the recipe."""

    name: str = "model"
    """Of the policy in the files: `eval-<name>`."""
    mode: Mode = "search"
    num_samples: int = 1
    questions: Path | None = None
    """A question file instead of the recipe's test questions."""
    is_dev: bool = False
    """Ask the recipe's development questions instead; the name then begins with `dev-`."""
    endpoint: EndpointConfig | None = None
    """A served model instead of the recipe's."""
    in_flight: int = 8
    """Requests to the endpoint at once."""
    price: Price | None = None
    usd_per_hour: float | None = None
    """Of this machine, for a local model."""
    judge: JudgeConfig | None = None
    """Instead of the recipe's, which is asked when `eval.judge` says so."""

    @property
    def names(self) -> list[str]:
        """Of the samples."""
        return [self.name] if self.num_samples == 1 else [f"{self.name}-s{n + 1}" for n in range(self.num_samples)]


@dataclass(frozen=True, slots=True)
class EvalOutcome:
    """What came of a request."""

    summaries: list[EvalSummary]
    """One per sample."""
    samples: SampleSummary | None
    """All of them together; None for one sample."""


def run_evaluation(recipe: Recipe, path: Path, request: EvalRequest, reporter: Reporter) -> EvalOutcome:
    """Do what is asked, or go on where an earlier process stopped.

    Of the recipe its model, data, retrieval, env, rollout and eval sections count.

    Raises:
        ConfigError: the request does not make sense, or the folder holds another evaluation of this name.
        DataError: no question is left, or a file is bad.
    """
    _check(recipe, request)
    judge_config = request.judge or (recipe.judge if recipe.eval.judge else None)
    folder = RunFolder(path, recipe)
    world = open_world(recipe, path, reporter)
    served = request.endpoint
    questions = _with_gold(_questions(recipe, request, world), recipe, request, world, reporter)
    settings = EvalSettings.from_recipe(
        recipe,
        model=served.model if served is not None else "",
        endpoint=served.url if served is not None else "",
        num_passages=num_passages_of(recipe, folder),
        mode=request.mode,
    )
    _claim(folder, request, settings, questions)
    calibration = read_calibration(Path(settings.model)) if settings.model and not settings.endpoint else None
    summaries: list[EvalSummary] = []
    with (
        folder.written_here_only(),
        open_judge(judge_config, path, reporter) if judge_config else contextlib.nullcontext() as judge,
        _open_roller(recipe, world, request, reporter) as (roller, model, layers),
    ):
        extras = Extras(judge, request.usd_per_hour, calibration)
        for number, name in enumerate(request.names):
            # The first sample is what one sample would have been.
            seed = recipe.seed if number == 0 else derive_seed(recipe.seed, "sample", number)
            stage, started = f"eval-{name}", time.perf_counter()
            try:
                decoding = eval_decoding(recipe)
                summary = ask_and_score(
                    folder, roller, questions, decoding, settings, stage, reporter, seed=seed, extras=extras
                )
            finally:
                folder.add_seconds(stage, time.perf_counter() - started)
            summaries.append(summary)
        folder.write_record(describe_evaluation(recipe, folder, world, model, layers))
    return EvalOutcome(summaries, _put_together(folder, request))


def _check(recipe: Recipe, request: EvalRequest) -> None:
    if request.is_dev and (request.questions or not request.name.startswith("dev-")):
        raise ConfigError(
            f"--dev asks the recipe's development questions under a name like dev-{request.name}; it does not go with "
            "--questions"
        )
    if not request.name.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"--name {request.name!r} becomes part of a file name; use letters, digits, - and _")
    if request.num_samples > 1 and recipe.eval.rollout.temperature == 0:
        raise ConfigError(
            f"{request.num_samples} samples of a greedy policy are {request.num_samples} copies; "
            "set eval.rollout.temperature above 0, or ask for one sample"
        )
    for name, ours in (("temperature", recipe.eval.rollout.temperature), ("top_p", recipe.eval.rollout.top_p)):
        extra = request.endpoint.fields if request.endpoint is not None else {}
        # Left out of the request, both are 1 on every server.
        theirs = 1 if name in extra and extra[name] is None else extra.get(name, ours)
        if theirs != ours:
            raise ConfigError(
                f"--endpoint-extra makes {name} {theirs}, the recipe says {ours}; add eval.rollout.{name}={theirs}, "
                "or the figures would be recorded under the wrong decoding"
            )
    if request.endpoint is None and request.price is not None:
        raise ConfigError("prices per token are an endpoint's; for a local model give the machine's price per hour")
    if request.endpoint is not None and request.usd_per_hour is not None:
        raise ConfigError("a price per hour is a local model's; for an endpoint give its prices per million tokens")


def _questions(recipe: Recipe, request: EvalRequest, world: World) -> list[Question]:
    if request.questions is None:
        if request.is_dev and not world.dev:
            raise DataError("no development questions: set data.dev or data.dev_fraction, and eval.dev_questions")
        return world.dev if request.is_dev else world.test
    kinds, sources = recipe.data.questions.kinds, recipe.data.questions.test_sources
    questions = [
        each
        for each in read_questions(request.questions)
        if (not kinds or each.kind in kinds) and (not sources or each.source in sources)
    ][: recipe.eval.num_questions or None]
    if not questions:
        raise DataError(
            f"{request.questions} holds no question to ask; check data.questions.kinds and data.questions.test_sources"
        )
    seen = with_shared_text(questions, world.train)
    if seen:
        raise DataError(
            f"{len(seen)} of the questions are the recipe's training questions, such as {seen[0].question!r}; "
            "a held-out figure would mean nothing: name other questions, or another data.train"
        )
    return questions


def _claim(folder: RunFolder, request: EvalRequest, settings: EvalSettings, questions: Sequence[Question]) -> None:
    """Note what is evaluated under this name; an earlier evaluation of something else must not be gone on with."""
    path = folder.path / "requests" / f"{request.name}.json"
    now: dict[str, Json] = {
        "mode": request.mode,
        "model": settings.model,
        "endpoint": settings.endpoint,
        "extra": json.dumps(request.endpoint.fields, sort_keys=True) if request.endpoint is not None else "",
        "question_set_hash": question_set_hash(questions),
        "is_sampled_repeatedly": request.num_samples > 1,
    }
    # A run that goes on exports another policy under the same name.
    files = [] if request.endpoint else sorted(Path(settings.model).glob("*.safetensors"))
    if files:
        now["weights"] = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    claim(path, now, what=f"an evaluation named {request.name!r}", instead="use another --name, or another --out")


@contextlib.contextmanager
def _open_roller(
    recipe: Recipe, world: World, request: EvalRequest, reporter: Reporter
) -> Iterator[tuple[QuestionRoller, dict[str, Json], tuple[str, ...]]]:
    """The roller, what the policy is, and the sandbox's layers."""
    if request.endpoint is not None:
        client = ChatClient(request.endpoint)
        count_tokens, counter = token_counter(recipe, reporter)
        with open_env(recipe, world.library, count_tokens) as (env, layers):
            roller = ChatRoller(
                _env_of(env, recipe, world, request.mode), client, in_flight=request.in_flight, price=request.price
            )
            served: dict[str, Json] = {"spec": request.endpoint.model, "resolved": request.endpoint.url}
            yield roller, served | {"dtype": "", "token_counter": counter}, layers
        return
    model_dir = resolve_model(recipe.model.spec, log=reporter.line)
    with open_agent(recipe, world.library, model_dir) as agent:
        model: dict[str, Json] = {"spec": recipe.model.spec, "resolved": model_dir.name}
        local = agent.roller.over(_env_of(agent.env, recipe, world, request.mode))
        yield local, model | {"dtype": agent.sampler.dtype}, agent.sandbox_layers


def _with_gold(
    questions: list[Question], recipe: Recipe, request: EvalRequest, world: World, reporter: Reporter
) -> list[Question]:
    """Those that the mode can ask: a gold passage needs a page of the corpus."""
    if request.mode != "gold-passage":
        return questions
    found = [question for question in questions if gold_passages(world.library, question, recipe)]
    if not found:
        raise DataError(f"none of {len(questions)} questions names a page of the corpus (supporting_ids)")
    if len(found) < len(questions):
        reporter.line(f"note: {len(questions) - len(found)} of {len(questions)} questions name no page of the corpus")
    return found


def _env_of(env: SearchEnv, recipe: Recipe, world: World, mode: Mode) -> SearchEnv:
    rules = recipe.evaluated.env
    if mode == "search":
        return env.with_config(rules)
    one_turn = {"max_turns": 1, "forced_answer": False, "invalid_action": "retry", "failing_share": 0.0}
    protocol = PlainProtocol(mode, world.library, recipe, env.with_config(rules).budget)
    return SearchEnv(protocol, {}, rules.model_copy(update=one_turn), count_tokens=env.budget.count_tokens)


def _put_together(folder: RunFolder, request: EvalRequest) -> SampleSummary | None:
    if request.num_samples == 1:
        return None
    summary = summarize_samples([(name, read_records(folder.episodes_path(f"eval-{name}"))) for name in request.names])
    path = folder.path / "samples" / f"{request.name}.json"
    write_atomically(path, json.dumps(summary.to_json(), ensure_ascii=False, indent=1) + "\n")
    return summary
