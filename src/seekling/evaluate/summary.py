"""Episode records -> the figures of one evaluation, with everything a reader needs to trust them.

Scores are worked out again from the recorded answers, so a summary cannot disagree with its episodes. An episode that
ended in an infrastructure failure is counted under its cause and left out of every figure: it is never a wrong answer.
What is None or empty was not there to count, not asked for, or an older version wrote the file.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import pydantic

from seekling.corpus.questions import question_set_hash
from seekling.errors import DataError
from seekling.evaluate.behaviours import ERROR_CAUSES
from seekling.evaluate.confidence import Calibration, ConfidenceSummary, summarize_confidence
from seekling.evaluate.episode_facts import EpisodeFacts, RecoverySummary, behaviour_rates, facts_of, summarize_recovery
from seekling.evaluate.intervals import Mean, Rate, mean_of, rate_of
from seekling.evaluate.judging import JudgeDetails
from seekling.evaluate.settings import EvalSettings
from seekling.reward.functions import score_episode
from seekling.reward.match import is_vacuous
from seekling.rollout.sampler import draft_rates
from seekling.types import EpisodeRecord, Json, Question, StopReason


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The scores of some answers."""

    em: Rate
    f1: Mean
    substring: Rate | None = None
    rouge_l: Mean | None = None
    judge: Rate | None = None
    """Answers that a judging model called correct, of those it gave a verdict on."""


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """Which questions were asked, and the odd ones among their golds."""

    question_set_hash: str
    num_vacuous_golds: int
    """Gold answers that SQuAD's normalisation empties; they are matched under a milder rule."""
    vacuous_golds: tuple[str, ...] = ()
    """Up to five of them, as `id: gold`."""


@dataclass(frozen=True, kw_only=True)
class GroupSummary(Scores):
    """The figures of one kind of question, or of one data set."""

    gold_retrieved: Rate
    searches_per_question: float | None


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """What the policy did."""

    answered: Rate
    gold_retrieved: Rate
    """Questions with known supporting documents for which a call returned at least one of them."""
    gold_retrieved_all: Rate
    episodes_with_invalid: Rate
    """Episodes with at least one unreadable action."""
    invalid_rate: float | None
    """Unreadable actions per turn. Turns of one episode are not independent, hence no interval."""
    truncated_observation_rate: float | None
    """Observations that the token budget cut, per observation."""
    stop_reasons: Mapping[str, int]
    """Over all episodes, excluded ones too."""
    behaviours: Mapping[str, Rate] = field(default_factory=dict)
    """Episodes that show each behaviour of `BEHAVIOURS`; program behaviours where any episode could write one."""
    error_causes: Mapping[str, int] = field(default_factory=dict)
    """Why episodes are not right. Sums to the episodes with a record minus `em.k`: excluded ones have a cause too."""
    recovery: RecoverySummary | None = None
    confidence: ConfidenceSummary | None = None
    """None where the policy has no calibration."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a scored episode costs on average."""

    searches_per_question: float | None
    turns_per_question: float | None
    action_tokens_per_question: float | None
    observation_tokens_per_question: float | None
    seconds_per_question: float | None
    """Of one episode among those that ran at the same time."""
    prompt_tokens_per_question: float | None = None
    """Of served models, every turn's whole prompt counted."""
    dollars_per_question: float | None = None
    """Excluded episodes cost too; the sum is divided by the questions asked."""
    dollars_total: float | None = None
    wall_seconds_per_question: float | None = None
    """Of the whole evaluation; times of processes that were killed are missing."""
    draft_acceptance: float | None = None
    """Of the tokens that the engine guessed ahead, the share that was right. It hangs on what ran at the same time."""
    drafted_per_token: float | None = None
    """Tokens guessed ahead by tokens sampled."""


@dataclass(frozen=True, kw_only=True)
class EvalSummary(QuestionSet, Costs, Conduct, Scores):
    """The figures of one evaluation."""

    stage: str
    num_questions: int
    """Questions asked; `em.n` of them were scored, the others are in `exclusions`."""
    exclusions: Mapping[str, int]
    """Episodes left out of every figure, by cause."""
    temperatures: tuple[float, ...]
    """Seen in the episodes, ascending; (0,) is greedy."""
    settings: EvalSettings | None = None
    by_kind: Mapping[str, GroupSummary] = field(default_factory=dict)
    """By kind of question, and by "kind: label" where questions have labels; a question may have several."""
    by_source: Mapping[str, GroupSummary] = field(default_factory=dict)
    judge_details: JudgeDetails | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    """Texts of the infrastructure failures, numbers left out, with how often each came."""

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object; `from_json` is its inverse."""
        return asdict(self)

    @staticmethod
    def from_json(row: Json) -> EvalSummary:
        """Rebuild a summary; raises pydantic.ValidationError, a ValueError that names each wrong field."""
        return pydantic.TypeAdapter(EvalSummary).validate_python(row)


class _Scored(NamedTuple):
    record: EpisodeRecord
    scores: Mapping[str, float]
    facts: EpisodeFacts


def summarize(
    records: Iterable[EpisodeRecord],
    *,
    settings: EvalSettings | None = None,
    judge_details: JudgeDetails | None = None,
    wall_s: float | None = None,
    usd_per_hour: float | None = None,
    calibration: Calibration | None = None,
) -> EvalSummary:
    """Turn the episodes of one evaluation into its figures.

    Args:
        records: of one stage, one per question, in any order.
        settings: under which they were sampled. The protocol and temperature of every episode must agree with it, so
            that an evaluation that lost its greedy flag is refused instead of reported.
        judge_details: of the judge that gave the verdicts among the records' scores.
        wall_s: what the evaluation took as a whole.
        usd_per_hour: price of that time; None adds up what the episodes cost.
        calibration: of the policy's confidence, by other questions than these.

    Raises:
        DataError: no record, two records of one question, more than one stage, an episode that belongs to another
            question, or episodes that disagree with `settings`.
    """
    records = list(records)
    stage = _check_records(records)
    if settings is not None:
        _check_settings(records, settings)
    kept = [_score(record) for record in records if record.episode.stop_reason is not StopReason.INFRA_FAILURE]
    num_failed = len(records) - len(kept)
    kinds = [(each.record.question.kind, each) for each in kept]
    labelled = [(f"{kind}: {label}", each) for kind, each in kinds for label in each.record.question.labels]
    return EvalSummary(
        stage=stage,
        num_questions=len(records),
        exclusions={StopReason.INFRA_FAILURE.value: num_failed} if num_failed else {},
        temperatures=tuple(sorted({record.episode.temperature for record in records})),
        settings=settings,
        by_kind=_groups([*kinds, *labelled]),
        by_source=_groups([(each.record.question.source, each) for each in kept]),
        judge_details=judge_details,
        failures=_failures(records),
        **vars(_question_set([record.question for record in records])),
        **vars(_scores(kept)),
        **vars(_conduct(records, kept, calibration)),
        **vars(_costs(records, kept, wall_s, usd_per_hour)),
    )


def _check_records(records: Sequence[EpisodeRecord]) -> str:
    if not records:
        raise DataError("there is no episode to summarise; evaluate first, or check the name of the stage")
    stages = sorted({record.stage for record in records})
    if len(stages) > 1:
        raise DataError(f"episodes of several stages cannot share one summary: {', '.join(stages)}; filter by stage")
    twice = [key for key, count in Counter(record.question.key for record in records).items() if count > 1]
    if twice:
        raise DataError(
            f"{len(twice)} question(s) have more than one episode in {stages[0]}, such as {twice[0]}; "
            "expected one episode per question, or k/n would count some questions twice"
        )
    return stages[0]


def _check_settings(records: Sequence[EpisodeRecord], settings: EvalSettings) -> None:
    for name, expected in (("temperature", settings.temperature), ("protocol", settings.protocol)):
        seen = [r.episode.temperature if name == "temperature" else r.episode.protocol for r in records]
        others = [value for value in seen if value != expected]
        if others:
            raise DataError(
                f"{len(others)} of {len(seen)} episodes were sampled with {name} {others[0]!r}, but the settings say "
                f"{expected!r}; evaluate again, or summarise with the settings that were used"
            )


def _score(record: EpisodeRecord) -> _Scored:
    scores = score_episode(record.episode, record.question)
    facts = facts_of(record, scores["em"])
    # A judge's verdict is the one score that cannot be worked out again.
    return _Scored(record, scores | {name: record.scores[name] for name in ("judge",) if name in record.scores}, facts)


def _scores(kept: Sequence[_Scored]) -> Scores:
    rows = [each.scores for each in kept]
    verdicts = [row["judge"] for row in rows if "judge" in row]
    return Scores(
        em=_rate([row["em"] for row in rows]),
        f1=mean_of([row["f1"] for row in rows]),
        substring=_rate([row["substring"] for row in rows]),
        rouge_l=mean_of([row["rouge_l"] for row in rows]),
        judge=_rate(verdicts) if verdicts else None,
    )


def _question_set(questions: Sequence[Question]) -> QuestionSet:
    vacuous = [f"{question.id}: {gold}" for question in questions for gold in question.answers if is_vacuous(gold)]
    return QuestionSet(
        question_set_hash=question_set_hash(questions), num_vacuous_golds=len(vacuous), vacuous_golds=tuple(vacuous[:5])
    )


def _groups(named: Sequence[tuple[str, _Scored]]) -> dict[str, GroupSummary]:
    """Figures by name, the names sorted; nothing where no member has a name."""
    groups: dict[str, list[_Scored]] = {}
    for name, member in named:
        groups.setdefault(name, []).append(member)
    if set(groups) <= {""}:
        return {}
    return {
        name: GroupSummary(
            gold_retrieved=_gold_retrieved(members),
            searches_per_question=_mean([each.facts.num_searches for each in members]),
            **vars(_scores(members)),
        )
        for name, members in sorted(groups.items())
    }


def _failures(records: Sequence[EpisodeRecord]) -> dict[str, int]:
    """Failure texts differ in ports, counts and times; without numbers the same cause is the same text."""
    failed = [record.episode for record in records if record.episode.stop_reason is StopReason.INFRA_FAILURE]
    texts = Counter(re.sub(r"[0-9]+", "#", " ".join(episode.failure.split()))[:160] for episode in failed)
    return dict(sorted(texts.items(), key=lambda item: (-item[1], item[0])))


def _conduct(records: Sequence[EpisodeRecord], kept: Sequence[_Scored], calibration: Calibration | None) -> Conduct:
    episodes = [each.record.episode for each in kept]
    turns = [turn for episode in episodes for turn in episode.turns]
    causes = Counter(each.facts.cause for each in kept) + Counter(infrastructure=len(records) - len(kept))
    has_programs = any(episode.protocol == "code" for episode in episodes)
    return Conduct(
        answered=_rate([episode.answer is not None for episode in episodes]),
        gold_retrieved=_gold_retrieved(kept),
        gold_retrieved_all=_rate([each.facts.is_complete for each in kept if each.facts.found_at is not None]),
        episodes_with_invalid=_rate([any(turn.kind == "invalid" for turn in each.turns) for each in episodes]),
        invalid_rate=_mean([turn.kind == "invalid" for turn in turns]),
        truncated_observation_rate=_mean([turn.is_observation_truncated for turn in turns if turn.observation]),
        stop_reasons=dict(sorted(Counter(record.episode.stop_reason.value for record in records).items())),
        behaviours=behaviour_rates([each.facts.behaviours for each in kept], has_programs=has_programs),
        error_causes={cause: causes[cause] for cause in ERROR_CAUSES},
        recovery=summarize_recovery([(each.record, each.facts) for each in kept]),
        confidence=summarize_confidence(records, calibration) if calibration is not None else None,
    )


def _costs(
    records: Sequence[EpisodeRecord], kept: Sequence[_Scored], wall_s: float | None, usd_per_hour: float | None
) -> Costs:
    episodes = [each.record.episode for each in kept]
    paid = [record.episode.usage["cost_usd"] for record in records if "cost_usd" in record.episode.usage]
    dollars = math.fsum(paid) if paid else None
    if usd_per_hour is not None and wall_s is not None:
        dollars = usd_per_hour * wall_s / 3600
    prompts = [episode.usage["prompt_tokens"] for episode in episodes if "prompt_tokens" in episode.usage]
    return Costs(
        searches_per_question=_mean([each.facts.num_searches for each in kept]),
        turns_per_question=_mean([len(episode.turns) for episode in episodes]),
        action_tokens_per_question=_mean([each.facts.action_tokens for each in kept]),
        observation_tokens_per_question=_mean([each.facts.observation_tokens for each in kept]),
        prompt_tokens_per_question=_mean(prompts),
        seconds_per_question=_mean([episode.duration_s for episode in episodes]),
        wall_seconds_per_question=None if wall_s is None else wall_s / len(records),
        dollars_per_question=None if dollars is None else dollars / len(records),
        dollars_total=dollars,
        **draft_rates(episodes),
    )


def _gold_retrieved(members: Sequence[_Scored]) -> Rate:
    return _rate([each.facts.found_at > 0 for each in members if each.facts.found_at is not None])


def _rate(values: Sequence[float]) -> Rate:
    return rate_of(round(sum(values)), len(values))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
