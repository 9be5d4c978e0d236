"""`seekling eval` as a user meets it: local and served policies, bounds, samples, judges, interruptions."""

import json

import pytest

from seekling.config import recipe_to_toml
from seekling.evaluate.result_files import read_records
from tests import commands
from tests.chat_server import chat_server, completion
from tests.pipeline.runs import village_recipe

MILLS = {"Alder": "1612", "Birch": "1655"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, tiny_model_dir):
    """A recipe file of four questions about two mills; measured in the tiny model's tokens."""
    folder = tmp_path_factory.mktemp("village")
    path = folder / "village.toml"
    path.write_text(recipe_to_toml(village_recipe(folder, tiny_model_dir)), encoding="utf-8")
    return path


def seekling(*words):
    return commands.seekling("eval", *words)


def ask(recipe, out, server, *words, name="gpt", model="big"):
    endpoint = ["--endpoint", server.url, "--endpoint-model", model, "--endpoint-tries", "1", "--in-flight", "1"]
    return seekling(recipe, *words, "--name", name, "--out", out, *endpoint)


def evaluate(recipe, out, server, *words, name="gpt"):
    result = ask(recipe, out, server, *words, "--json", name=name)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def write_questions(path, questions):
    """Questions about mills: (source, mill, year) of each."""
    rows = [
        {"id": f"{source}-{mill}", "question": f"In which year was {mill} Mill built?", "answers": [year]}
        | {"source": source}
        for source, mill, year in questions
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def timeless(summary):
    return {name: value for name, value in summary.items() if name != "wall_seconds_per_question"}


def asked_of(body):
    """The mill that the conversation is about."""
    return next(mill for mill in MILLS if f"{mill} Mill built?" in body["messages"][0]["content"])


def searcher(body):
    """Searches for the mill, then says the year if an observation holds it."""
    mill = asked_of(body)
    if len(body["messages"]) == 1:
        return 200, completion(f"<search> {mill} Mill </search>", prompt_tokens=100, completion_tokens=10)
    year = MILLS[mill] if MILLS[mill] in body["messages"][-1]["content"] else "unknown"
    return 200, completion(f"<answer> {year} </answer>", prompt_tokens=200, completion_tokens=5)


def test_a_served_model_plays_by_the_recipes_rules_and_is_priced(recipe, tmp_path):
    with chat_server(searcher) as server:
        summary = evaluate(recipe, tmp_path / "run", server, "--price-in", 2, "--price-out", 10)
    assert (summary["em"]["k"], summary["em"]["n"], summary["exclusions"]) == (4, 4, {})
    assert (summary["gold_retrieved"]["k"], summary["gold_retrieved"]["n"]) == (4, 4)
    assert (summary["searches_per_question"], summary["turns_per_question"]) == (1.0, 2.0)
    assert (summary["prompt_tokens_per_question"], summary["action_tokens_per_question"]) == (300.0, 15.0)
    assert summary["dollars_per_question"] == pytest.approx((300 * 2 + 15 * 10) / 1e6)
    settings = summary["settings"]
    assert (settings["model"], settings["endpoint"]) == ("big", server.url)
    assert (settings["max_generations"], settings["max_searching_turns"]) == (3, 2)
    assert settings["num_passages"] > 0
    record = json.loads((tmp_path / "run" / "record.json").read_text(encoding="utf-8"))
    assert record["model"]["spec"] == "big"
    assert "characters" not in record["model"]["token_counter"]
    assert json.loads((tmp_path / "run" / "eval" / "gpt.json").read_text(encoding="utf-8")) == summary


def test_what_failed_for_infrastructure_is_excluded_and_asked_again_on_resume(recipe, tmp_path):
    is_up = []

    def respond(body):
        return searcher(body) if is_up or asked_of(body) == "Alder" else (503, {"error": "busy"})

    with chat_server(respond) as server:
        first = evaluate(recipe, tmp_path / "run", server)
        asked = len(server.requests)
        is_up.append(True)
        second = evaluate(recipe, tmp_path / "run", server)
        third = evaluate(recipe, tmp_path / "run", server)
    assert (first["em"]["k"], first["em"]["n"], first["exclusions"]) == (2, 2, {"infra_failure": 2})
    (failure,) = first["failures"].items()
    assert "HTTP #" in failure[0]
    assert failure[1] == 2
    assert (second["em"]["k"], second["em"]["n"], second["exclusions"]) == (4, 4, {})
    assert len(server.requests) == asked + 4
    assert timeless(third) == timeless(second)
    assert first["question_set_hash"] == second["question_set_hash"]


def test_an_evaluation_that_was_stopped_goes_on_where_it_stopped(recipe, tmp_path):
    allowed = [4]

    def respond(body):
        allowed[0] -= 1
        return searcher(body) if allowed[0] >= 0 else (401, {"error": "key revoked"})

    with chat_server(respond) as server:
        stopped = ask(recipe, tmp_path / "run", server)
        assert stopped.exit_code == 1
        assert "key revoked" in stopped.output
        assert len(list(read_records(tmp_path / "run" / "episodes" / "eval-gpt.jsonl"))) == 2
        allowed[0] = 100
        summary = evaluate(recipe, tmp_path / "run", server)
    assert (summary["em"]["k"], summary["em"]["n"]) == (4, 4)
    # Four for two questions, the refused one (and perhaps the next, already on its way), four for the other two.
    assert 4 + 1 + 4 <= len(server.requests) <= 4 + 2 + 4


def test_closed_book_and_gold_passage_bound_from_below_and_above(recipe, tmp_path):
    def respond(body):
        text = body["messages"][0]["content"]
        assert "<search>" not in text
        return 200, completion(next((year for year in MILLS.values() if year in text), "I do not know"))

    with chat_server(respond) as server:
        below = evaluate(recipe, tmp_path / "run", server, "--mode", "closed-book", name="closed")
        above = evaluate(recipe, tmp_path / "run", server, "--mode", "gold-passage", name="gold")
    assert (below["em"]["k"], below["em"]["n"], above["em"]["k"], above["em"]["n"]) == (0, 4, 4, 4)
    assert below["question_set_hash"] == above["question_set_hash"]
    assert (above["settings"]["protocol"], above["settings"]["max_generations"]) == ("gold-passage", 1)
    assert above["searches_per_question"] == 0


def test_samples_give_mean_and_pass_at_k_and_each_is_an_evaluation(recipe, tmp_path):
    def respond(body):
        # The seed of the first sample of a question is another one than that of the second.
        if len(body["messages"]) == 1:
            seen.setdefault(asked_of(body), set()).add(body["seed"])
        return searcher(body)

    seen: dict[str, set[int]] = {}
    with chat_server(respond) as server:
        found = evaluate(recipe, tmp_path / "run", server, "eval.rollout.temperature=0.7", "--samples", 3)
    assert [len(seeds) for seeds in seen.values()] == [6, 6]
    assert (found["samples"]["num_samples"], found["samples"]["em_mean"]["value"]) == (3, 1.0)
    assert sorted(found["samples"]["pass_at_k"]) == ["1", "2", "3"]
    assert [summary["stage"] for summary in found["summaries"]] == ["eval-gpt-s1", "eval-gpt-s2", "eval-gpt-s3"]
    assert json.loads((tmp_path / "run" / "samples" / "gpt.json").read_text(encoding="utf-8")) == found["samples"]


def test_a_judge_reads_the_answers_and_its_verdicts_stay_in_the_folder(recipe, tmp_path):
    def respond(body):
        if body["model"] == "judge":
            return 200, completion("VERDICT: CORRECT" if "1612" in body["messages"][1]["content"] else "well")
        return searcher(body)

    with chat_server(respond) as server:
        judge = ["--judge-url", server.url, "--judge-model", "judge"]
        first = evaluate(recipe, tmp_path / "run", server, *judge)
        asked = len(server.requests)
        second = evaluate(recipe, tmp_path / "run", server, *judge)
    # Nothing is sampled again, and the judge is asked only where it gave no verdict.
    assert len(server.requests) - asked == 2 * 3
    assert (first["judge"]["k"], first["judge"]["n"], first["em"]["n"]) == (2, 2, 4)
    assert first["judge_details"]["errors"] == {"unreadable_verdict": 2}
    assert second["judge"] == first["judge"]
    # Verdicts are kept, what was unreadable is asked again.
    assert second["judge_details"]["num_cached"] == 2
    records = list(read_records(tmp_path / "run" / "episodes" / "eval-gpt.jsonl"))
    assert [record.scores.get("judge") for record in records] == [1.0, None, 1.0, None]


def test_what_the_judge_is_told_comes_from_its_own_options(recipe, tmp_path):
    def respond(body):
        if body["model"] != "judge":
            return searcher(body)
        return 200, completion("Let me think. " * 3, finish="length") if body["max_tokens"] < 50 else completion(
            "VERDICT: CORRECT"
        )

    with chat_server(respond) as server:
        judge = ["--judge-url", server.url, "--judge-model", "judge", "--judge-tokens", 40]
        judge += ["--judge-extra", '{"reasoning": {"effort": "low"}, "temperature": null}']
        cut = evaluate(recipe, tmp_path / "run", server, *judge)
        told = [body for body in server.requests if body["model"] == "judge"]
        played = [body for body in server.requests if body["model"] != "judge"]
        judge[judge.index(40)] = 4000
        whole = evaluate(recipe, tmp_path / "run", server, *judge)
    assert {body["max_tokens"] for body in told} == {40}
    assert all(body["reasoning"] == {"effort": "low"} and "temperature" not in body for body in told)
    assert not any("reasoning" in body for body in played)
    assert (cut["judge"], cut["judge_details"]["errors"]) == (None, {"unreadable_verdict": 4})
    assert (whole["judge"]["k"], whole["judge"]["n"], whole["judge_details"]["errors"]) == (4, 4, {})
    refused = seekling(recipe, "--out", tmp_path / "run", *judge[:4], "--judge-extra", "[1]")
    assert "--judge-extra: Value error, expected a JSON object" in " ".join(refused.output.split())


def test_a_local_model_is_priced_by_the_hour(recipe, tmp_path):
    result = seekling(recipe, "--out", tmp_path / "run", "--price-hour", 3600, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["dollars_total"] > 0
    assert summary["dollars_per_question"] == pytest.approx(summary["dollars_total"] / 4)
    assert summary["wall_seconds_per_question"] == pytest.approx(summary["dollars_per_question"])


def test_only_the_questions_of_the_recipes_data_sets_are_asked(recipe, tmp_path):
    path = write_questions(
        tmp_path / "q.jsonl", [(source, *item) for source in ("nq", "popqa") for item in MILLS.items()]
    )
    with chat_server(searcher) as server:
        only_nq = 'data.questions.test_sources=["nq"]'
        summary = evaluate(recipe, tmp_path / "run", server, only_nq, "data.test=" + str(path), "--questions", path)
    assert (summary["num_questions"], list(summary["by_source"])) == (2, ["nq"])


def test_without_the_recipes_tokenizer_observations_are_measured_in_characters_and_it_is_said(recipe, tmp_path):
    with chat_server(searcher) as server:
        summary = evaluate(recipe, tmp_path / "run", server, f"model.spec={tmp_path}/no-such-model")
    assert summary["em"]["k"] == 4
    record = json.loads((tmp_path / "run" / "record.json").read_text(encoding="utf-8"))
    assert record["model"]["token_counter"] == "4 characters a token"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--samples", "2"], "2 samples of a greedy policy are 2 copies"),
        (["--endpoint", "http://localhost/v1"], "got one of --endpoint and --endpoint-model"),
        (["--judge-model", "j"], "got one of --judge-url and --judge-model"),
        (["--price-in", "1", "--price-out", "2"], "prices per token are an endpoint's"),
        (["--price-in", "1"], "give both, 0 for what is free"),
        (["--name", "../x"], "becomes part of a file name"),
        (
            ["--endpoint", "http://x/v1", "--endpoint-model", "m", "--endpoint-key-env", "NOT_SET_HERE"],
            "the environment variable NOT_SET_HERE is not set",
        ),
        (["--endpoint", "x", "--endpoint-model", "m", "--endpoint-extra", "[1]"], "expected a JSON object"),
        (
            ["--endpoint", "http://x/v1", "--endpoint-model", "m", "--endpoint-extra", '{"temperature": null}'],
            "--endpoint-extra makes temperature 1, the recipe says 0.0; add eval.rollout.temperature=1",
        ),
    ],
)
def test_requests_that_make_no_sense_are_refused_with_what_to_do(recipe, tmp_path, words, message):
    result = seekling(recipe, "--out", tmp_path / "run", *words)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


def test_training_questions_are_found_out_under_another_source_too(recipe, tmp_path):
    rows = [json.loads(line) for line in (recipe.parent / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps({**row, "source": "nq"}) + "\n" for row in rows), encoding="utf-8")
    result = seekling(recipe, "--out", tmp_path / "run", "--questions", path)
    assert result.exit_code == 1
    assert "are the recipe's training questions" in " ".join(result.output.split())
