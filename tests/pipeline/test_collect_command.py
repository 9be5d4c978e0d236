"""`seekling collect` as a user meets it: protocols, selection, budgets, kills, and training on what was kept."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest

from seekling.config import SandboxConfig, recipe_to_toml
from seekling.env.sandbox import Sandbox
from seekling.errors import ConfigError, DataError, SandboxError
from seekling.evaluate.result_files import read_records
from seekling.pipeline.stages import run_recipe
from seekling.serve.chat_app import make_chat_app
from seekling.serve.gate import GateRules
from seekling.serve.keys import Keys
from seekling.serve.local_model import open_local_chat
from tests import commands
from tests.app_server import served
from tests.chat_server import chat_server, completion
from tests.pipeline.killing import start_command
from tests.pipeline.runs import QuietReporter, rows, village_recipe

YEARS = {"Alder": "1612", "Birch": "1655"}


@pytest.fixture
def recipe(tmp_path, tiny_model_dir):
    """A recipe file of two training questions."""
    path = tmp_path / "village.toml"
    path.write_text(recipe_to_toml(village_recipe(tmp_path / "village", tiny_model_dir)), encoding="utf-8")
    return path


def seekling(*words):
    return commands.seekling("collect", *words)


def options(server, out):
    endpoint = ["--endpoint", server.url, "--endpoint-model", "big", "--endpoint-tries", "1", "--in-flight", "1"]
    return ["--out", out, *endpoint]


def collect(recipe, out, server, *words):
    result = seekling(recipe, *words, *options(server, out), "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.strip().split("\n")[-1])


def mill_of(body):
    return next(mill for mill in YEARS if any(f"When was {mill} Mill built?" in m["content"] for m in body["messages"]))


def teacher(protocol="tags", wrong=()):
    """Searches for the mill, then says the year if an observation holds it; lies about some mills."""
    search = {
        "tags": "<search> {} Mill </search>",
        "tools": '<tool_call>{{"name": "search", "arguments": {{"query_list": ["{} Mill"]}}}}</tool_call>',
        "code": '```python\nprint(read_section(search_pages("{} Mill")[0]["page_id"] + ":full"))\n```',
    }[protocol]
    answer = "Answer: {}" if protocol == "tools" else "<answer> {} </answer>"

    def respond(body):
        mill = mill_of(body)
        observed = body["messages"][-1]["content"] if len(body["messages"]) > 2 else ""
        if "built in" not in observed:
            return 200, completion(search.format(mill), prompt_tokens=100, completion_tokens=10)
        year = YEARS[mill] if YEARS[mill] in observed and mill not in wrong else "1900"
        return 200, completion(answer.format(year), prompt_tokens=200, completion_tokens=5)

    return respond


@pytest.mark.parametrize("protocol", ["tags", "tools", "code"])
def test_a_teacher_plays_every_protocol_and_its_right_episodes_are_kept(recipe, tmp_path, protocol):
    if protocol == "code":
        try:
            Sandbox(SandboxConfig()).close()
        except SandboxError as error:
            pytest.skip(f"no sandbox on this machine: {error}")
    out = tmp_path / "out"
    with chat_server(teacher(protocol, wrong=["Birch"])) as server:
        changes = [f"env.protocol={protocol}", "env.observation_tokens=200"]
        report = collect(recipe, out, server, *changes, "--price-in", 2, "--price-out", 10)
    assert (report["num_questions"], report["num_episodes"], report["num_kept"]) == (2, 2, 1)
    assert report["reasons"] == {"a wrong answer": 1}
    assert report["dropped"] == [{"source": "village", "id": "birch", "reason": "a wrong answer"}]
    assert report["spent"] == {
        "num_requests": 4,
        "prompt_tokens": 600,
        "completion_tokens": 30,
        "cost_usd": pytest.approx((600 * 2 + 30 * 10) / 1e6),
    }
    assert json.loads((out / "selection.json").read_text(encoding="utf-8")) == report
    assert [each.question.id for each in read_records(out / "episodes" / "teacher.jsonl")] == ["single", "birch"]
    (kept,) = read_records(out / "episodes" / "expert.jsonl")
    assert (kept.stage, kept.episode.answer, kept.episode.protocol) == ("expert", "1612", protocol)


def test_the_same_command_asks_nothing_twice_and_another_model_needs_another_folder(recipe, tmp_path):
    out = tmp_path / "out"
    with chat_server(teacher()) as server:
        first = collect(recipe, out, server)
        assert collect(recipe, out, server) == first
        assert len(server.requests) == 4
        other = seekling(recipe, *options(server, out), "--endpoint-model", "other")
        assert other.exit_code == 1
        assert "differs in model" in other.output


def test_a_question_is_tried_again_until_it_is_right(recipe, tmp_path):
    asked = {"Alder": 0, "Birch": 0}

    def respond(body):
        mill = mill_of(body)
        asked[mill] += len(body["messages"]) == 1
        return teacher(wrong=["Birch"] if asked["Birch"] < 3 else [])(body)

    with chat_server(respond) as server:
        report = collect(recipe, tmp_path / "out", server, "--attempts", 5)
        seeds = [body["seed"] for body in server.requests]
    assert asked == {"Alder": 1, "Birch": 3}
    assert len(set(seeds)) == len(seeds)
    assert (report["num_kept"], report["num_episodes"]) == (2, 4)
    with chat_server(teacher()) as server:
        refused = seekling(
            recipe, "rollout.temperature=0", "rl.steps=0", *options(server, tmp_path / "b"), "--attempts", 2
        )
    assert (refused.exit_code, "are copies" in refused.output) == (1, True)


def test_a_budget_stops_between_two_requests_and_a_larger_one_goes_on(recipe, tmp_path):
    out = tmp_path / "out"
    with chat_server(teacher()) as server:
        # 110 and 205 tokens for the first question, 110 for the second's search; its answer is over the budget.
        stopped = collect(recipe, out, server, "--budget-tokens", 420)
        assert "425 of 420 tokens are spent" in stopped["stopped"]
        assert (stopped["num_episodes"], stopped["num_kept"], len(server.requests)) == (1, 1, 3)
        again = collect(recipe, out, server, "--budget-tokens", 420)
        assert (again["stopped"], len(server.requests)) == (stopped["stopped"], 3)
        done = collect(recipe, out, server, "--budget-tokens", 10_000)
        assert (done["stopped"], done["num_kept"], len(server.requests)) == ("", 2, 4)
        assert done["spent"]["num_requests"] == 4
        dollars = seekling(recipe, *options(server, tmp_path / "b"), "--budget-usd", "0.01")
        assert (dollars.exit_code, "--price-in" in dollars.output) == (1, True)
        half = seekling(recipe, *options(server, tmp_path / "b"), "--budget-usd", "0.01", "--price-in", 2)
        assert (half.exit_code, "give both, 0 for what is free" in half.output) == (1, True)


@pytest.mark.parametrize("killed_at", [2, 3])
def test_a_killed_process_loses_nothing_and_its_successor_asks_nothing_twice(recipe, tmp_path, killed_at):
    out, processes, killed = tmp_path / "out", [], threading.Event()

    def respond(body):
        if len(server.requests) == killed_at:
            processes[0].kill()
            killed.wait(300)
        return teacher()(body)

    with chat_server(respond) as server:
        words = [recipe, *options(server, out)]
        processes.append(start_command(["collect", *words]))
        processes[0].join(300)
        killed.set()
        assert processes[0].exitcode == -signal.SIGKILL
        report = collect(recipe, out, server)
        bodies = [json.dumps(body, sort_keys=True) for body in server.requests]
    # The one whose reply never arrived was asked again; nothing else was.
    assert len(bodies) == 5
    assert len(set(bodies)) == 4
    assert bodies.count(bodies[killed_at - 1]) == 2
    assert (report["num_kept"], report["num_episodes"], report["spent"]["num_requests"]) == (2, 2, 4)
    assert len(list(read_records(out / "episodes" / "teacher.jsonl"))) == 2


def test_ctrl_c_asks_nothing_more_and_keeps_the_reply_that_was_under_way(recipe, tmp_path):
    out, interrupts = tmp_path / "out", [signal.SIGINT]

    def respond(body):
        if interrupts:
            os.kill(os.getpid(), interrupts.pop())
            time.sleep(0.5)  # until the main thread has noticed
        return teacher()(body)

    with chat_server(respond) as server:
        stopped = seekling(recipe, *options(server, out))
        assert (stopped.exit_code, len(server.requests)) == (130, 1)
        report = collect(recipe, out, server)
        assert (report["num_kept"], len(server.requests)) == (2, 4)


def test_what_failed_for_infrastructure_is_asked_again_and_not_counted_as_wrong(recipe, tmp_path):
    out, is_up = tmp_path / "out", []

    def respond(body):
        return teacher()(body) if is_up or mill_of(body) == "Alder" else (503, {"error": "busy"})

    with chat_server(respond) as server:
        first = collect(recipe, out, server)
        is_up.append(True)
        second = collect(recipe, out, server)
    assert (first["num_kept"], first["reasons"]) == (1, {"an infrastructure failure": 1})
    assert (second["num_kept"], second["num_episodes"], second["reasons"]) == (2, 2, {})


def test_a_judge_accepts_what_exact_match_refuses(recipe, tmp_path):
    def respond(body):
        status, reply = teacher()(body)
        message = reply["choices"][0]["message"]
        message["content"] = message["content"].replace("<answer> 1612", "<answer> in the year 1612")
        return status, reply

    def key_holder(body):
        case = json.loads(body["messages"][1]["content"])
        is_right = case["right_answers"][0] in case["answer"]
        return 200, completion("VERDICT: CORRECT" if is_right else "VERDICT: INCORRECT")

    with chat_server(respond) as server, chat_server(key_holder) as judge:
        judged = ["--judge-url", judge.url, "--judge-model", "judge"]
        report = collect(recipe, tmp_path / "out", server, *judged)
        without = collect(recipe, tmp_path / "b", server)
    assert (report["num_kept"], without["num_kept"]) == (2, 1)
    assert len(judge.requests) == 1


def test_without_an_endpoint_there_is_nobody_to_ask(recipe, tmp_path):
    result = seekling(recipe, "--out", tmp_path / "out")
    assert (result.exit_code, "--endpoint and --endpoint-model" in result.output) == (1, True)


def test_people_see_a_table(recipe, tmp_path):
    with chat_server(teacher(wrong=["Birch"])) as server:
        result = seekling(recipe, *options(server, tmp_path / "out"))
    for words in ("2 episodes of 2 questions", "kept", "dropped: a wrong answer", "4 requests, 630 tokens"):
        assert words in result.stdout


def test_our_own_server_with_the_tiny_model_is_an_endpoint_like_any_other(recipe, tmp_path, tiny_model_dir):
    with open_local_chat(str(tiny_model_dir), name="big", dtype="float32", context_tokens=700) as chat:
        app = make_chat_app(chat, rules=GateRules(Keys(secret="secret")))
        with served(app) as address, pytest.MonkeyPatch.context() as patch:
            patch.setenv("MY_KEY", "secret")
            words = ["--endpoint", f"{address}/v1", "--endpoint-model", "big", "--endpoint-key-env", "MY_KEY"]
            result = seekling(recipe, *words, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.strip().split("\n")[-1])
    assert (report["num_episodes"], report["num_kept"]) == (2, 0)
    assert report["spent"]["completion_tokens"] > 0
    assert "secret" not in "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "out").glob("*.jsonl"))


# Training on what was kept


def train_on(folder, tiny_model_dir, file, *, protocol="tags", **changes):
    sft = {"learning_rate": 1e-3, "epochs": 1, "episodes_per_step": 2, "row_tokens": 700}
    sections = {"experts": {"file": str(file), **changes.pop("experts", {})}, "sft": sft, "rl": {"steps": 0}}
    sections |= {"env": {"observation_tokens": 80, "protocol": protocol}, "eval": {"stages": []}, **changes}
    recipe = village_recipe(folder / "village", tiny_model_dir, **sections)
    reporter = QuietReporter()
    run_recipe(recipe, folder / "run", reporter)
    return folder / "run", reporter


@pytest.fixture(scope="module")
def collected(tmp_path_factory, tiny_model_dir):
    """The expert file of a collection in tags."""
    folder = tmp_path_factory.mktemp("collected")
    path = folder / "village.toml"
    path.write_text(recipe_to_toml(village_recipe(folder / "village", tiny_model_dir)), encoding="utf-8")
    with chat_server(teacher()) as server:
        collect(path, folder / "out", server)
    return folder / "out" / "episodes" / "expert.jsonl"


def test_a_run_trains_on_collected_episodes(collected, tmp_path, tiny_model_dir):
    run, reporter = train_on(tmp_path, tiny_model_dir, collected)
    assert [row["stage"] for row in rows(run / "metrics.jsonl")] == ["sft"]
    assert [row["question"]["id"] for row in rows(run / "episodes" / "expert.jsonl")] == ["single", "birch"]
    assert any("2 of 2 episodes of 2 questions kept" in line for line in reporter.lines)


def test_step_wise_records_are_trained_on_too_and_too_long_ones_refused(collected, tmp_path, tiny_model_dir):
    steps = tmp_path / "steps.json"
    words = ["data", "stepwise", str(collected), "--out", str(steps)]
    assert commands.seekling(*words).exit_code == 0
    sft = {"epochs": 1, "episodes_per_step": 4, "row_tokens": 700}
    run, reporter = train_on(tmp_path, tiny_model_dir, steps, sft=sft)
    (row,) = rows(run / "metrics.jsonl")
    assert (row["stage"], row["step"]) == ("sft", 1)
    assert any("4 step-wise records" in line for line in reporter.lines)
    rollout = {"turn_tokens": 50, "episode_tokens": 200, "in_flight": 4}
    with pytest.raises(DataError, match=r"longer than rollout\.episode_tokens = 200"):
        train_on(tmp_path / "b", tiny_model_dir, steps, rollout=rollout)
    with pytest.raises(ConfigError, match="this run's is tools"):
        train_on(tmp_path / "c", tiny_model_dir, steps, protocol="tools")
    with pytest.raises(ConfigError, match=r"from which experts\.balance and experts\.max_episodes cannot select"):
        train_on(tmp_path / "d", tiny_model_dir, steps, experts={"max_episodes": 1})


def test_what_does_not_belong_to_the_recipe_is_left_out_or_refused(collected, tmp_path, tiny_model_dir):
    with pytest.raises(ConfigError, match="episodes of the protocol tags; this run's is tools"):
        train_on(tmp_path, tiny_model_dir, collected, protocol="tools")
    foreign = tmp_path / "foreign.jsonl"
    held_out = collected.read_text(encoding="utf-8").replace('"id": "birch"', '"id": "held-out birch"')
    foreign.write_text(held_out.replace('"question_id": "birch"', '"question_id": "held-out birch"'), encoding="utf-8")
    run, reporter = train_on(tmp_path / "b", tiny_model_dir, foreign)
    assert [row["question"]["id"] for row in rows(run / "episodes" / "expert.jsonl")] == ["single"]
    assert any("1 not a training question of this recipe" in line for line in reporter.lines)
    rollout = {"turn_tokens": 50, "episode_tokens": 100, "in_flight": 4}
    with pytest.raises(DataError, match=r"2 longer than rollout\.episode_tokens"):
        train_on(tmp_path / "c", tiny_model_dir, collected, rollout=rollout)
