"""Confidence that is calibrated on some questions and keeps its promise on others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from seekling.evaluate.confidence import calibrate, summarize_confidence
from seekling.types import Episode, EpisodeRecord, Question, StopReason, Turn
from tests.evaluate.episodes import failed, question, search


def answered(number: int, *, is_right: bool, logprob: float, is_shown: bool) -> EpisodeRecord:
    """An episode whose last turn was found as likely as `logprob`, and whose answer stood in what came back, or not."""
    asked = Question(f"q{number}", "Where?", ("Paris",))
    answer = "Paris" if is_right else "Lyon"
    looked = replace(search(), observation=f"It is {answer}." if is_shown else "Nothing.", action_logprobs=(-0.1,))
    last = Turn("<answer>", "answer", answer, action_logprobs=(logprob, logprob / 2))
    return EpisodeRecord(
        "dev-sft", asked, Episode(asked.id, "", "tags", (), (looked, last), answer, StopReason.ANSWERED)
    )


def sampled(num: int, seed: int) -> list[EpisodeRecord]:
    """Right answers are surer, and stand in an observation more often, than wrong ones."""
    rng = np.random.default_rng(seed)
    records = []
    for number in range(num):
        is_right = bool(rng.random() < 0.6)
        logprob = -float(rng.exponential(0.15 if is_right else 0.9))
        records.append(
            answered(number, is_right=is_right, logprob=logprob, is_shown=bool(rng.random() < 0.5 + 0.4 * is_right))
        )
    return records


def test_confidence_is_the_share_of_right_answers_on_other_questions():
    calibration = calibrate(sampled(400, 0), promised_precision=0.9)
    others = sampled(2000, 1)
    confidences = np.array([calibration.confidence(each.episode) for each in others])
    is_right = np.array([each.episode.answer == "Paris" for each in others])
    for low, high in ((0.0, 0.3), (0.3, 0.6), (0.6, 0.9), (0.9, 1.0)):
        inside = (confidences >= low) & (confidences < high)
        assert inside.sum() > 30
        assert is_right[inside].mean() == pytest.approx(confidences[inside].mean(), abs=0.1)


def test_an_answer_of_a_kind_that_no_development_question_had_is_trusted_with_nothing():
    known = [
        answered(number, is_right=number % 3 > 0, logprob=-0.1 if number % 3 else -0.9, is_shown=True)
        for number in range(90)
    ]
    calibration = calibrate(known, promised_precision=0.8)
    shown, not_shown = (answered(0, is_right=True, logprob=-0.1, is_shown=each).episode for each in (True, False))
    assert calibration.confidence(shown) > 0.8
    assert calibration.confidence(not_shown) == 0.0


NAMED = 'Doc 1(Title: "Mills") Orla Mill was built by Tobias Wren. Doc 2(Title: "Bees") Ann Lee, a keeper of bees'
CALLS = 'Document 1:\n"Mills"\nOrla Mill was built by Tobias Wren.\n\nDocument 2:\n"Bees"\nAnn Lee keeps bees'


@pytest.mark.parametrize("observation", [NAMED, CALLS])
def test_an_answer_is_surer_where_its_passage_names_what_it_is_about(observation):
    def confidence_of(answer, thought):
        last = Turn(f"<think> {thought} </think>", "answer", answer, action_logprobs=(-0.1,))
        looked = replace(search(), observation=observation, action_logprobs=(-0.1,))
        return Episode("q", "", "tags", (), (looked, last), answer, StopReason.ANSWERED)

    right = confidence_of("Tobias Wren", "[Orla Mill] built by: Tobias Wren.")
    wrong = confidence_of("Ann Lee", "[Orla Mill] built by: Ann Lee.")
    question = Question("q", "Who built Orla Mill?", ("Tobias Wren",))
    calibration = calibrate(
        [EpisodeRecord("dev-sft", question, episode) for episode in [right, right, wrong] * 30], promised_precision=0.9
    )
    assert calibration.confidence(right) > 0.9
    assert calibration.confidence(wrong) < 0.1
    # One that was made of the first features alone still reads episodes.
    four = {name: getattr(calibration, name)[:4] for name in ("means", "scales", "weights")}
    older = replace(calibration, **four)
    assert older.confidence(right) == older.confidence(wrong) > 0.5


def test_what_is_surer_than_the_threshold_keeps_the_promise():
    summary = summarize_confidence(sampled(2000, 1), calibrate(sampled(400, 0), promised_precision=0.8))
    assert summary.promised_precision == 0.8
    assert 0.78 < summary.right_of_shown.value < 0.9
    assert 0.2 < summary.shown.value < 0.9
    # Less sure answers are worse: the risk grows with the coverage, and the area is below the risk of all.
    coverages, risks = zip(*summary.curve, strict=True)
    assert list(coverages) == sorted(coverages)
    assert coverages[-1] == 1.0
    assert risks[-1] == pytest.approx(0.4, abs=0.04)
    assert summary.aurc < risks[-1] / 2


def test_nine_promises_of_ten_are_kept():
    others = sampled(3000, 99)
    kept = []
    for seed in range(30):
        shown = summarize_confidence(others, calibrate(sampled(150, seed), promised_precision=0.75)).right_of_shown
        kept.append(shown.value is None or shown.value >= 0.75)
    assert sum(kept) >= 24


def test_where_no_threshold_keeps_the_promise_nothing_is_promised_and_all_is_shown():
    records = [answered(n, is_right=n % 2 == 0, logprob=-0.5, is_shown=True) for n in range(60)]
    calibration = calibrate(records, promised_precision=0.95)
    summary = summarize_confidence(records, calibration)
    assert (calibration.promise, summary.promised_precision) == (None, None)
    assert (summary.right_of_shown.k, summary.right_of_shown.n, summary.shown.k) == (30, 60, 60)


def test_episodes_without_an_answer_have_no_confidence_and_are_never_covered():
    calibration = calibrate(sampled(400, 0), promised_precision=0.8)
    unknown = answered(1, is_right=True, logprob=-0.1, is_shown=True)
    unknown = replace(unknown, episode=replace(unknown.episode, answer="unknown"))
    none = replace(unknown, episode=replace(unknown.episode, answer=None, stop_reason=StopReason.MAX_TURNS))
    assert calibration.confidence(unknown.episode) is calibration.confidence(none.episode) is None
    summary = summarize_confidence([unknown, none, failed(question(9)), *sampled(8, 3)], calibration)
    assert summary.shown.n == 10
    assert summary.curve[-1][0] == 0.8
