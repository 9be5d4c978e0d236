"""A run folder as `seekling train` leaves it, made up: for the tests, and to look at the page while working on it.

python -m tests.report.run_folder OUT [--questions 100] [--steps 24]
"""

import argparse
import json
import math
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path

from seekling.config import Recipe, recipe_to_toml
from seekling.evaluate.confidence import calibrate
from seekling.evaluate.result_files import write_comparisons, write_summary
from seekling.evaluate.settings import EvalSettings
from seekling.evaluate.summary import summarize
from seekling.reward import make_reward, score_episode
from seekling.types import Episode, EpisodeRecord, Message, Question, StopReason, ToolCall, Turn
from tests.settings import recipe_of

TOWNS = ["Aldermoor", "Brinhaven", "Caldry", "Dunmere", "Eskholm", "Fennwick", "Garrowby", "Hestle", "Inverlode"]
PEOPLE = ["Ilse Varga", "Tomas Reed", "Anneke Holt", "Piers Ondine", "Mara Kestrel", "Joris Vale", "Edda Thorn"]
WORKS = ["the Salt Bridge", "the Lantern Hall", "the Old Observatory", "the Tide Mill", "the Copper Archive"]
PROMPT = (
    "Answer the question. Think first, inside <think> and </think>. If you lack knowledge, search by writing "
    "<search>query</search>; what is found comes back between <information> and </information>. Search as often as you "
    "need. Then write the answer, a few words, inside <answer> and </answer>.\n\nQuestion: "
)

SKILL = {"eval-base": (0.02, 0.05), "eval-sft": (0.55, 0.9), "eval-rl": (0.72, 0.97)}


@dataclass(frozen=True)
class Fact:
    question: Question
    subject: str
    passage: str
    wrong: str


def make_fact(number: int, rng: random.Random) -> Fact:
    town, person, work = rng.choice(TOWNS), rng.choice(PEOPLE), rng.choice(WORKS)
    subject = f"{work} of {town}"
    year = str(rng.randint(1480, 1930))
    kind = rng.choice(["single", "single", "single", "bridge", "comparison", "unanswerable"])
    text, answers = {
        "single": (f"In which year was {subject} completed?", (year,)),
        "bridge": (f"Where was the designer of {subject} born?", (rng.choice(TOWNS),)),
        "comparison": (f"Which is older, {subject} or {rng.choice(WORKS)} of {rng.choice(TOWNS)}?", (subject,)),
        "unanswerable": (f"How many steps lead up to {subject}?", ("unknown", "not known", "not stated")),
    }[kind]
    support = () if kind == "unanswerable" else (f"page-{number:04d}",)
    question = Question(f"almanac-{number:04d}", text, answers, support, kind, "almanac")
    passage = (
        f"{subject.capitalize()} > History. Work on {subject} began under {person}, who had drawn the first plans "
        f"while still a student. After two winters of delays it was completed in {year}, and the town held a fair of "
        "nine days. "
        f"The designer, born in {answers[0] if kind == 'bridge' else rng.choice(TOWNS)}, never saw it finished."
    )
    return Fact(question, subject, passage, str(rng.randint(1480, 1930)))


def make_episode(
    fact: Fact, stage: str, rng: random.Random, *, skill: float, searching: float, step: int = 0
) -> Episode:
    question = fact.question
    turns: list[Turn] = []
    fate = rng.random()
    if fate < 0.012:
        return _finish(fact, turns, None, StopReason.INFRA_FAILURE, rng, stage, step)
    is_right = rng.random() < skill
    if rng.random() < searching:
        if rng.random() < 0.08:
            turns.append(_invalid(rng))
        turns.append(_search(fact, rng, finds=is_right or rng.random() < 0.4))
        if question.kind in ("bridge", "comparison"):
            turns.append(_search(fact, rng, finds=is_right))
    elif rng.random() < 0.5:
        turns += [_invalid(rng), _invalid(rng)]
        return _finish(fact, turns, None, rng.choice([StopReason.MAX_TURNS, StopReason.MAX_TOKENS]), rng, stage, step)
    text = question.answers[0] if is_right else fact.wrong
    action = f"<think>The page says so plainly.</think>\n<answer>{text}</answer>"
    turns.append(Turn(action=action, kind="answer", payload=text, num_action_tokens=rng.randint(14, 26)))
    return _finish(fact, turns, text, StopReason.ANSWERED, rng, stage, step)


def _search(fact: Fact, rng: random.Random, *, finds: bool) -> Turn:
    query = rng.choice([fact.subject, f"{fact.subject} history", fact.question.question])
    other = f"{rng.choice(WORKS).capitalize()} of {rng.choice(TOWNS)} has a namesake elsewhere. It was rebuilt twice."
    documents = (*(fact.question.supporting_ids[:1] if finds else ()), "page-9000")
    found = fact.passage if finds else other
    observation = (
        f"\n\n<information>\nDoc 1(Title: {fact.subject}) {found}\nDoc 2(Title: Bridges) {other}\n</information>\n\n"
    )
    return Turn(
        action=f"<think>I do not know this; {fact.subject} should have a page.</think>\n<search>{query}</search>",
        kind="search",
        payload=query,
        observation=observation,
        calls=(ToolCall("search", {"query": query}, observation.strip(), document_ids=documents),),
        is_observation_truncated=rng.random() < 0.1,
        num_action_tokens=rng.randint(18, 40),
        num_observation_tokens=rng.randint(120, 320),
    )


def _invalid(rng: random.Random) -> Turn:
    said = ["The answer is probably 1704.", "Sure! Here is what I know about bridges:\n1. They are", "search("]
    complaint = "\nYour last message held no action. Write <search>...</search> or <answer>...</answer>.\n"
    return Turn(
        rng.choice(said), "invalid", "", complaint, num_action_tokens=rng.randint(6, 96), num_observation_tokens=24
    )


def _finish(fact, turns, answer, stop, rng, stage, step) -> Episode:
    return Episode(
        question_id=fact.question.id,
        source=fact.question.source,
        protocol="tags",
        prompt=(Message("user", PROMPT + fact.question.question),),
        turns=tuple(turn if stage == "expert" else with_tokens(turn, rng) for turn in turns),
        answer=answer,
        stop_reason=stop,
        failure="the search server did not answer within 30 s" if stop is StopReason.INFRA_FAILURE else "",
        policy_version=step,
        seed=rng.randrange(2**31),
        temperature=1.0 if stage == "rl" else 0.0,
        duration_s=rng.uniform(0.5, 4.0),
    )


def with_tokens(turn: Turn, rng: random.Random) -> Turn:
    """The turn with a probability for each piece of its action, pieces being words and what stands between them."""
    pieces = re.findall(r"\w+|\W", turn.action)
    logprobs = tuple(-round(rng.choice([0.0, 0.0, 0.01, 0.05, 0.3, 0.9, 2.5]), 2) + 0.0 for _ in pieces)
    return replace(
        turn,
        num_action_tokens=len(pieces),
        action_lengths=tuple(len(piece) for piece in pieces),
        action_logprobs=logprobs,
    )


def rl_records(facts: list[Fact], steps: int, rng: random.Random) -> list[EpisodeRecord]:
    reward = make_reward("em")
    records = []
    for step in range(1, steps + 1):
        for fact in rng.sample(facts, min(8, len(facts))):
            skill = 0.45 + 0.35 * step / steps
            group = [make_episode(fact, "rl", rng, skill=skill, searching=0.95, step=step) for _ in range(8)]
            kept = [episode for episode in group if episode.stop_reason is not StopReason.INFRA_FAILURE]
            rewards = [reward(episode, fact.question) for episode in kept]
            mean = sum(r.total for r in rewards) / max(1, len(rewards))
            for episode, r in zip(kept, rewards, strict=True):
                records.append(EpisodeRecord("rl", fact.question, episode, step, r, round(r.total - mean, 6)))
            records += [EpisodeRecord("rl", fact.question, e, step) for e in group if e not in kept]
    return records


def metric_rows(steps: int, rng: random.Random) -> list[dict]:
    rows, clock = [], 30.0
    for step in range(1, 39):
        clock += 3.1
        loss = 0.28 + 2.4 * math.exp(-step / 7) + rng.gauss(0, 0.05)
        rows.append({"stage": "sft", "step": step, "time_s": clock, "loss": loss, "grad_norm": 0.9 + rng.random() / 3})
    for step in range(1, steps + 1):
        clock += 21.5
        share = step / steps
        em = min(0.98, 0.5 + 0.3 * share + rng.gauss(0, 0.04))
        rows.append(
            {
                "stage": "rl", "step": step, "time_s": clock, "loss": rng.gauss(0, 0.02),
                "reward_mean": em, "em_mean": em, "f1_mean": min(1.0, em + 0.04),
                "num_groups": 8, "num_zero_variance_groups": min(8, int(2 + 4 * share + rng.random() * 2)),
                "num_failed_episodes": int(rng.random() < 0.2), "num_truncated_episodes": int(3 * rng.random()),
                "entropy": 0.62 * math.exp(-share * 1.4) + rng.gauss(0, 0.015), "grad_norm": 0.5 + rng.random() / 2,
                "kl_sampler": abs(rng.gauss(0.0011, 0.0004)), "learning_rate": 1e-5 * min(1, step / 2),
                "action_tokens_mean": 52 - 9 * share + rng.gauss(0, 1.5),
                "searches_mean": 1.05 + 0.35 * share + rng.gauss(0, 0.04),
                "invalid_rate": max(0, 0.09 - 0.08 * share + rng.gauss(0, 0.01)), "sample_s": 14 + rng.random() * 2,
                "learn_s": 6 + rng.random(), "tokens_per_s": 820 + rng.gauss(0, 30),
            }
        )  # fmt: skip
    return rows


def write_records(run: Path, stage: str, records: list[EpisodeRecord], *, append: bool = False) -> None:
    path = run / "episodes" / f"{stage}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if append else "w", encoding="utf-8") as file:
        file.write("".join(json.dumps(record.to_json()) + "\n" for record in records))


def write_run(run: Path, *, questions: int = 100, steps: int = 24, seed: int = 0, recipe: Recipe | None = None) -> Path:
    """Write a whole run folder of invented but consistent data."""
    rng = random.Random(seed)
    recipe = recipe or recipe_of({"name": "demo", "seed": seed, "rl": {"steps": steps}, "sft": {"learning_rate": 2e-4}})
    run.mkdir(parents=True, exist_ok=True)
    (run / "recipe.toml").write_text(recipe_to_toml(recipe))
    (run / "record.json").write_text(json.dumps(RECORD | {"seed": seed}, indent=1))
    (run / "progress.json").write_text(json.dumps(PROGRESS))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metric_rows(steps, rng)))
    facts = [make_fact(number, rng) for number in range(questions)]
    expert = [EpisodeRecord("expert", f.question, make_episode(f, "expert", rng, skill=1, searching=1)) for f in facts]
    write_records(run, "expert", [r for r in expert if r.episode.stop_reason is not StopReason.INFRA_FAILURE])
    write_records(run, "rl", rl_records(facts, steps, rng))
    for stage, (skill, searching) in SKILL.items():
        records = []
        for fact in facts:
            episode = make_episode(fact, stage, rng, skill=skill, searching=searching)
            scored = episode.stop_reason is not StopReason.INFRA_FAILURE
            scores = score_episode(episode, fact.question) if scored else {}
            records.append(EpisodeRecord(stage, fact.question, episode, scores=scores))
        write_records(run, stage, records)
        calibration = calibrate(records, promised_precision=0.8)
        write_summary(run, summarize(records, settings=EvalSettings.from_recipe(recipe), calibration=calibration))
    write_comparisons(run)
    return run


PROGRESS = {"done": ["expert", "eval-base", "sft", "eval-sft", "rl", "eval-rl"], "stage": "", "step": 0, "state": ""}
RECORD = {
    "versions": {"seekling": "0.1.0", "python": "3.11.15", "torch": "2.13.0"},
    "git_commit": "2d70772c1d9a",
    "model": {"spec": "default", "resolved": "HuggingFaceTB/SmolLM2-135M-Instruct", "parameters": 134515008},
    "hashes": {"corpus": "9f2c1a77", "train_questions": "51be20aa", "test_questions": "c07d4d19"},
    "machine": {"cpu": "2 cores", "memory_gb": 15.6, "bf16": True, "gpu": None},
    "seconds": {"expert": 41.2, "eval-base": 61.0, "sft": 122.7, "eval-sft": 58.4, "rl": 516.3, "eval-rl": 60.1},
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--steps", type=int, default=24)
    arguments = parser.parse_args()
    write_run(arguments.out, questions=arguments.questions, steps=arguments.steps)
