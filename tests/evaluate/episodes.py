"""Hand-made records that the evaluation tests share."""

import json

from seekling.evaluate.result_files import write_summary
from seekling.evaluate.summary import summarize
from seekling.types import Episode, EpisodeRecord, Question, StopReason, ToolCall, Turn


def question(number, *, kind="single", source="", answers=("Paris",), support=("page-1",)):
    return Question(
        id=f"q{number}",
        question=f"Question {number}?",
        answers=answers,
        supporting_ids=support,
        kind=kind,
        source=source,
    )


def search(returned=("page-1",), *, tokens=10, observation_tokens=50, is_cut=False):
    call = ToolCall(name="search", arguments={"query": "x"}, result="...", document_ids=tuple(returned))
    return Turn(
        action="<search>x</search>",
        kind="search",
        payload="x",
        observation="<information>...</information>",
        calls=(call,),
        is_observation_truncated=is_cut,
        num_action_tokens=tokens,
        num_observation_tokens=observation_tokens,
    )


def invalid(*, tokens=4):
    return Turn(action="hm", kind="invalid", observation="That was not an action.", num_action_tokens=tokens)


def answer_turn(text, *, tokens=6):
    return Turn(action=f"<answer>{text}</answer>", kind="answer", payload=text, num_action_tokens=tokens)


def record(asked, answer, *turns, stage="eval-rl", temperature=0.0, stop=None, seconds=2.0):
    turns = (*turns, answer_turn(answer)) if answer is not None else turns
    episode = Episode(
        question_id=asked.id,
        source=asked.source,
        protocol="tags",
        prompt=(),
        turns=turns,
        answer=answer,
        stop_reason=stop or (StopReason.ANSWERED if answer is not None else StopReason.MAX_TURNS),
        failure="connection refused" if stop is StopReason.INFRA_FAILURE else "",
        temperature=temperature,
        duration_s=seconds,
    )
    return EpisodeRecord(stage=stage, question=asked, episode=episode)


def failed(asked, *, stage="eval-rl"):
    return record(asked, None, search(), stage=stage, stop=StopReason.INFRA_FAILURE)


def evaluation(outcomes, *, stage, **fields):
    """One record per letter: r right, w wrong, f failed; `fields` are of the questions."""
    made = {
        "r": lambda asked: record(asked, "Paris", search(), stage=stage),
        "w": lambda asked: record(asked, "Lyon", stage=stage),
        "f": lambda asked: failed(asked, stage=stage),
    }
    return [made[letter](question(number, **fields)) for number, letter in enumerate(outcomes)]


def write_episodes(run, stage, records):
    """Write a stage's episodes file, and say where."""
    path = run / "episodes" / f"{stage}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each.to_json()) + "\n" for each in records), encoding="utf-8")
    return path


def write_evaluations(run, *, has_summaries=True, source="", **stages):
    """Write a run folder with an evaluation per name, as letters; see `evaluation`."""
    for name, outcomes in stages.items():
        records = evaluation(outcomes, stage=f"eval-{name}", source=source)
        write_episodes(run, f"eval-{name}", records)
        if has_summaries:
            write_summary(run, summarize(records))
    return run
