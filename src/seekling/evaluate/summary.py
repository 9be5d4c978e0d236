"""Episode records -> the figures of one evaluation, with everything a reader needs to trust them.

Scores are worked out again from the recorded answers, so a summary cannot disagree with its episodes. An episode that
ended in an infrastructure failure is counted under its cause and left out of every figure: it is never a wrong answer.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType

import pydantic

from seekling.corpus.questions import question_set_hash
from seekling.errors import DataError
from seekling.evaluate.behaviour_rates import behaviour_rates, error_causes
from seekling.evaluate.confidence import Calibration, ConfidenceSummary, summarize_confidence
from seekling.evaluate.intervals import Mean, Rate, mean_of, rate_of
from seekling.evaluate.judging import JudgeDetails
from seekling.evaluate.recovery import RecoverySummary, summarize_recovery
from seekling.evaluate.settings import EvalSettings
from seekling.reward.functions import score_episode
from seekling.reward.match import is_vacuous
from seekling.rollout.draft_rates import draft_rates
from seekling.types import Episode, EpisodeRecord, Json, Question, StopReason, Turn


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The figures of one kind of question, or of one data set."""

    em: Rate
    f1: Mean
    gold_retrieved: Rate
    searches_per_question: float | None
    substring: Rate | None = None
    """None in files of older versions, as below."""
    rouge_l: Mean | None = None
    judge: Rate | None = None


@dataclass(frozen=True, slots=True)
class EvalSummary:
    """The figures of one evaluation. Per-question means are over scored episodes and None when there are none."""

    stage: str
    num_questions: int
    """Questions asked; `em.n` of them were scored, the others are in `exclusions`."""
    em: Rate
    f1: Mean
    substring: Rate
    answered: Rate
    """Episodes that gave any answer."""
    gold_retrieved: Rate
    """Questions with known supporting documents for which a call returned at least one of them."""
    gold_retrieved_all: Rate
    """The same, but all of them, as a two-hop question needs."""
    episodes_with_invalid: Rate
    """Episodes with at least one unreadable action."""
    invalid_rate: float | None
    """Unreadable actions per turn. Turns of one episode are not independent, hence no interval."""
    truncated_observation_rate: float | None
    """Observations that the token budget cut, per observation."""
    searches_per_question: float | None
    turns_per_question: float | None
    action_tokens_per_question: float | None
    observation_tokens_per_question: float | None
    seconds_per_question: float | None
    stop_reasons: Mapping[str, int]
    """Over all episodes, excluded ones too."""
    exclusions: Mapping[str, int]
    """Episodes left out of every figure, by cause."""
    num_vacuous_golds: int
    """Gold answers that SQuAD's normalisation empties; they are matched under a milder rule."""
    question_set_hash: str
    """Of all questions asked."""
    temperatures: tuple[float, ...]
    """Seen in the episodes, ascending; (0,) is greedy."""
    settings: EvalSettings | None = None
    by_kind: Mapping[str, GroupSummary] = field(default_factory=dict)
    """By kind of question, and by "kind: label" where questions have labels; a question may have several."""
    by_source: Mapping[str, GroupSummary] = field(default_factory=dict)
    rouge_l: Mean | None = None
    """None in files of older versions."""
    judge: Rate | None = None
    """Answers that a judging model called correct, of those it gave a verdict on; None when none was asked."""
    judge_details: JudgeDetails | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    """Texts of the infrastructure failures, numbers left out, with how often each came."""
    vacuous_golds: tuple[str, ...] = ()
    """Up to five of the golds that `num_vacuous_golds` counts, as `id: gold`."""
    prompt_tokens_per_question: float | None = None
    """Of served models, every turn's whole prompt counted; None for local ones."""
    dollars_per_question: float | None = None
    """None when no price was given. Excluded episodes cost too; the sum is divided by the questions asked."""
    dollars_total: float | None = None
    behaviours: Mapping[str, Rate] = field(default_factory=dict)
    """Episodes that show each behaviour of `BEHAVIOURS`; empty in files of older versions."""
    wall_seconds_per_question: float | None = None
    """Of the whole evaluation, however many episodes ran at once; `seconds_per_question` is what one episode took among
    the others. Times of processes that were killed are missing."""
    error_causes: Mapping[str, int] = field(default_factory=dict)
    """Why episodes are not right. Sums to the episodes with a record minus `em.k`: excluded ones have a cause too."""
    recovery: RecoverySummary | None = None
    """What became of failed searches and of unanswerable questions; None in files of older versions."""
    confidence: ConfidenceSummary | None = None
    """None where the policy has no calibration."""
    draft_acceptance: float | None = None
    """Of the tokens that the engine guessed ahead, the share that sampling would have drawn anyway. It hangs on what
    ran at the same time, so a resumed evaluation has another one. None where nothing was guessed."""
    drafted_per_token: float | None = None
    """Tokens guessed ahead by tokens sampled."""

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object; `from_json` is its inverse."""
        return asdict(self)

    @staticmethod
    def from_json(row: Mapping[str, Json]) -> EvalSummary:
        """Rebuild a summary from `to_json`'s object, also after it has been through a JSON file.

        Raises:
            pydantic.ValidationError: the row is not a summary; a ValueError that names each wrong field.
        """
        return pydantic.TypeAdapter(EvalSummary).validate_python(row)


@dataclass(frozen=True, slots=True)
class _Scored:
    """One scored episode: its question beside what the figures need."""

    question: Question
    episode: Episode
    scores: Mapping[str, float]
    is_gold_seen: bool
    is_gold_complete: bool


def summarize(
    records: Iterable[EpisodeRecord],
    *,
    settings: EvalSettings | None = None,
    judge_details: JudgeDetails | None = None,
    not_asked: Mapping[str, int] = MappingProxyType({}),
    wall_s: float | None = None,
    usd_per_hour: float | None = None,
    calibration: Calibration | None = None,
) -> EvalSummary:
    """Turn the episodes of one evaluation into its figures.

    Args:
        records: of one stage, one per question, in any order; consumed once.
        settings: under which they were sampled. The protocol and the temperature of every episode must agree with it,
            so that an evaluation that lost its greedy flag is refused instead of reported.
        judge_details: of the judge that gave the verdicts among the records' scores.
        not_asked: questions that the mode cannot ask, by cause; they join the exclusions.
        wall_s: what the evaluation took as a whole.
        usd_per_hour: price of that time; None adds up what the episodes cost.
        calibration: of the policy's confidence, by other questions than these.

    Returns:
        The summary. With every episode excluded, rates are 0/0 and means None.

    Raises:
        DataError: no record, two records of one question, more than one stage, an episode that belongs to another
            question, or episodes that disagree with `settings`.
    """
    records = list(records)
    stage = _check_records(records)
    if settings is not None:
        _check_settings(records, settings)
    kept = [_score(record) for record in records if record.episode.stop_reason is not StopReason.INFRA_FAILURE]
    turns = [turn for scored in kept for turn in scored.episode.turns]
    num_failed = len(records) - len(kept)
    questions = [record.question for record in records]
    vacuous = [f"{question.id}: {gold}" for question in questions for gold in question.answers if is_vacuous(gold)]
    with_gold = [scored for scored in kept if scored.question.supporting_ids]
    dollars = _dollars(records, wall_s, usd_per_hour)
    return EvalSummary(
        stage=stage,
        num_questions=len(records),
        em=_rate(kept, "em"),
        f1=mean_of([scored.scores["f1"] for scored in kept]),
        substring=_rate(kept, "substring"),
        answered=rate_of(sum(scored.episode.answer is not None for scored in kept), len(kept)),
        gold_retrieved=rate_of(sum(scored.is_gold_seen for scored in with_gold), len(with_gold)),
        gold_retrieved_all=rate_of(sum(scored.is_gold_complete for scored in with_gold), len(with_gold)),
        episodes_with_invalid=rate_of(sum(_has_invalid(scored.episode.turns) for scored in kept), len(kept)),
        invalid_rate=_mean([turn.kind == "invalid" for turn in turns]),
        truncated_observation_rate=_mean([turn.is_observation_truncated for turn in turns if turn.observation]),
        stop_reasons=dict(sorted(Counter(record.episode.stop_reason.value for record in records).items())),
        exclusions={**({StopReason.INFRA_FAILURE.value: num_failed} if num_failed else {}), **not_asked},
        num_vacuous_golds=len(vacuous),
        question_set_hash=question_set_hash(questions),
        temperatures=tuple(sorted({record.episode.temperature for record in records})),
        settings=settings,
        by_kind=_kinds(kept),
        by_source=_groups(kept, [scored.question.source for scored in kept]),
        rouge_l=mean_of([scored.scores["rouge_l"] for scored in kept]),
        judge=_judge_rate(kept),
        judge_details=judge_details,
        failures=_failures(records),
        vacuous_golds=tuple(vacuous[:5]),
        wall_seconds_per_question=None if wall_s is None else wall_s / len(records),
        dollars_per_question=None if dollars is None else dollars / len(records),
        dollars_total=dollars,
        behaviours=behaviour_rates(records),
        error_causes=error_causes(records),
        recovery=summarize_recovery(records),
        confidence=summarize_confidence(records, calibration) if calibration is not None else None,
        **_per_question([scored.episode for scored in kept]),
        **draft_rates([scored.episode for scored in kept]),
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
    returned = {document for turn in record.episode.turns for call in turn.calls for document in call.document_ids}
    support = set(record.question.supporting_ids)
    return _Scored(
        question=record.question,
        episode=record.episode,
        scores={**score_episode(record.episode, record.question), **_verdict(record)},
        is_gold_seen=bool(support & returned),
        is_gold_complete=support <= returned,
    )


def _verdict(record: EpisodeRecord) -> dict[str, float]:
    """The one score that cannot be worked out again."""
    return {"judge": record.scores["judge"]} if "judge" in record.scores else {}


def _judge_rate(kept: Sequence[_Scored]) -> Rate | None:
    verdicts = [scored.scores["judge"] for scored in kept if "judge" in scored.scores]
    return rate_of(round(sum(verdicts)), len(verdicts)) if verdicts else None


def _failures(records: Sequence[EpisodeRecord]) -> dict[str, int]:
    """Failure texts differ in ports, counts and times; without numbers the same cause is the same text."""
    failed = [record.episode for record in records if record.episode.stop_reason is StopReason.INFRA_FAILURE]
    texts = Counter(re.sub(r"[0-9]+", "#", " ".join(episode.failure.split()))[:160] for episode in failed)
    return dict(sorted(texts.items(), key=lambda item: (-item[1], item[0])))


def _dollars(records: Sequence[EpisodeRecord], wall_s: float | None, usd_per_hour: float | None) -> float | None:
    if usd_per_hour is not None and wall_s is not None:
        return usd_per_hour * wall_s / 3600
    costs = [record.episode.usage["cost_usd"] for record in records if "cost_usd" in record.episode.usage]
    return math.fsum(costs) if costs else None


def _per_question(episodes: Sequence[Episode]) -> dict[str, float | None]:
    return {
        "searches_per_question": _mean([episode.num_searches for episode in episodes]),
        "turns_per_question": _mean([len(episode.turns) for episode in episodes]),
        "action_tokens_per_question": _mean([sum(t.num_action_tokens for t in e.turns) for e in episodes]),
        "observation_tokens_per_question": _mean([sum(t.num_observation_tokens for t in e.turns) for e in episodes]),
        "prompt_tokens_per_question": _mean([e.usage["prompt_tokens"] for e in episodes if "prompt_tokens" in e.usage]),
        "seconds_per_question": _mean([episode.duration_s for episode in episodes]),
    }


def _rate(kept: Sequence[_Scored], name: str) -> Rate:
    return rate_of(round(sum(scored.scores[name] for scored in kept)), len(kept))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _has_invalid(turns: Iterable[Turn]) -> bool:
    return any(turn.kind == "invalid" for turn in turns)


def _groups(kept: Sequence[_Scored], names: Sequence[str]) -> dict[str, GroupSummary]:
    """One summary per name; nothing when no question carries a name."""
    groups: dict[str, list[_Scored]] = {}
    for name, scored in zip(names, kept, strict=True):
        groups.setdefault(name, []).append(scored)
    if set(groups) <= {""}:
        return {}
    return {name: _group(groups[name]) for name in sorted(groups)}


def _kinds(kept: Sequence[_Scored]) -> dict[str, GroupSummary]:
    kinds = _groups(kept, [scored.question.kind for scored in kept])
    finer = [(f"{scored.question.kind}: {label}", scored) for scored in kept for label in scored.question.labels]
    return dict(sorted((kinds | _groups([scored for _, scored in finer], [name for name, _ in finer])).items()))


def _group(members: Sequence[_Scored]) -> GroupSummary:
    with_gold = [scored for scored in members if scored.question.supporting_ids]
    return GroupSummary(
        em=_rate(members, "em"),
        f1=mean_of([scored.scores["f1"] for scored in members]),
        gold_retrieved=rate_of(sum(scored.is_gold_seen for scored in with_gold), len(with_gold)),
        searches_per_question=_mean([scored.episode.num_searches for scored in members]),
        substring=_rate(members, "substring"),
        rouge_l=mean_of([scored.scores["rouge_l"] for scored in members]),
        judge=_judge_rate(members),
    )
