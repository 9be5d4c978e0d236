"""A served model in the real environment: a scripted server plays the policy."""

import pytest

from seekling.config import EndpointConfig, EnvConfig
from seekling.env.environment import SearchEnv
from seekling.env.protocol import make_protocol
from seekling.env.tools import library_tools
from seekling.errors import ConfigError
from seekling.rollout.chat import ChatClient, Price
from seekling.rollout.chat_roller import ChatRoller
from seekling.rollout.loop import Decoding
from seekling.types import Hit, Passage, Question, StopReason
from tests.chat_server import chat_server, completion

MILL = Question("mill", "When was Birch Mill built?", ("1655",), source="village")
LAKE = Question("lake", "How deep is the lake?", ("9 m",), source="village")
GREEDY = Decoding(turn_tokens=50, episode_tokens=1000, temperature=0.0)


class OnePage:
    may_wait = False

    def search(self, query, top_k):
        return [Hit(Passage("mill#0", "mill", "Birch Mill", "Built in 1655."), 1.0, 0)]


def env_of(protocol="tags", **changes):
    config = EnvConfig(protocol=protocol, **changes)
    tools = library_tools(OnePage(), 1)
    return SearchEnv(make_protocol(config, tools), tools, config, count_tokens=lambda text: len(text.split()))


def roll(respond, questions=(MILL,), *, env=None, decoding=GREEDY, price=None, seen=None, in_flight=1):
    with chat_server(respond) as server:
        endpoint = EndpointConfig(url=server.url, model="tiny", request_tries=2)
        client = ChatClient(endpoint, first_pause_s=0.001)
        roller = ChatRoller(env or env_of(), client, in_flight=in_flight, price=price)
        on_group = [].append if seen is None else seen.append
        groups = roller.rollout(list(questions), decoding, seed=3, on_group=on_group)
    return groups, server


def searcher(body):
    """Search first, then answer from what came back."""
    last = body["messages"][-1]["content"]
    if "Built in 1655" in last:
        return 200, completion("<answer> 1655 </answer>", prompt_tokens=60, completion_tokens=4)
    return 200, completion(
        "<think>look</think><search> Birch Mill </search> <information>made up</information>",
        prompt_tokens=40,
        completion_tokens=20,
    )


def test_an_episode_is_recorded_as_a_local_policys_would_be():
    seen = []
    (group,), _ = roll(searcher, price=Price(2.0, 10.0), seen=seen)
    assert seen == [group]
    (episode,) = group.episodes
    assert (episode.answer, episode.stop_reason) == ("1655", StopReason.ANSWERED)
    assert (episode.question_id, episode.source, episode.protocol) == ("mill", "village", "tags")
    assert [turn.kind for turn in episode.turns] == ["search", "answer"]
    assert episode.turns[0].calls[0].document_ids == ("mill",)
    assert episode.turns[0].action == "<think>look</think><search> Birch Mill </search>"
    assert [turn.num_action_tokens for turn in episode.turns] == [20, 4]
    assert episode.turns[0].num_observation_tokens == len(episode.turns[0].observation.split())
    assert episode.usage == pytest.approx(
        {"prompt_tokens": 100, "completion_tokens": 24, "num_requests": 2, "cost_usd": (100 * 2 + 24 * 10) / 1e6}
    )
    assert episode.temperature == 0.0
    assert episode.prompt[0].content.endswith("Question: When was Birch Mill built?\n")


@pytest.mark.parametrize("opening", ["<think>", ""])
def test_a_served_models_thought_may_quote_a_search(opening):
    thought = f"{opening}I may write <search> and </search>.</think>"

    def respond(body):
        status, reply = searcher(body)
        message = reply["choices"][0]["message"]
        message["content"] = message["content"].replace("<think>look</think>", thought)
        return status, reply

    (group,), _ = roll(respond)
    first, second = group.episodes[0].turns
    assert (first.action, first.payload) == (f"{thought}<search> Birch Mill </search>", "Birch Mill")
    assert (second.kind, group.episodes[0].num_searches) == ("answer", 1)


def test_what_the_model_invents_after_its_action_is_never_sent_back():
    _, server = roll(searcher)
    first, second = server.requests
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][0] == first["messages"][0]
    assert second["messages"][1]["content"].endswith("</search>")
    assert second["messages"][2]["content"].startswith('<information>Doc 1(Title: "Birch Mill") Built in 1655.')
    assert "seed" not in first
    assert "stop" not in first


def test_sampling_sends_a_seed_that_depends_on_question_and_turn():
    decoding = Decoding(50, 1000, temperature=0.7, top_p=0.9)
    _, first = roll(searcher, decoding=decoding)
    _, again = roll(searcher, decoding=decoding)
    seeds = [body["seed"] for body in first.requests]
    assert len(set(seeds)) == 2
    assert seeds == [body["seed"] for body in again.requests]
    assert first.requests[0]["top_p"] == 0.9


def test_min_p_is_refused_because_chat_completions_have_none():
    with pytest.raises(ConfigError, match=r"min_p = 0\.1.*extra fields"):
        roll(searcher, decoding=Decoding(50, 1000, min_p=0.1))


def test_a_failing_endpoint_ends_the_one_episode_as_infrastructure_and_not_the_others():
    def respond(body):
        if "lake" in body["messages"][0]["content"]:
            return 503, {"error": "busy"}
        return 200, completion("<answer> 1655 </answer>")

    groups, _ = roll(respond, (MILL, LAKE), in_flight=2)
    assert [group.question.id for group in groups] == ["mill", "lake"]
    assert (len(groups[0].episodes), len(groups[0].failed)) == (1, 0)
    assert (len(groups[1].episodes), len(groups[1].failed)) == (0, 1)
    assert groups[1].failed[0].stop_reason is StopReason.INFRA_FAILURE
    assert "HTTP 503" in groups[1].failed[0].failure


def test_an_endpoint_that_refuses_us_ends_the_evaluation():
    with pytest.raises(ConfigError, match="HTTP 401"):
        roll(lambda body: (401, {"error": "bad key"}), (MILL, LAKE))


def test_a_reply_that_the_limit_cut_is_not_read_unless_its_action_was_complete():
    (group,), _ = roll(lambda body: (200, completion("Answer is <answer> 16", finish="length")))
    assert (group.episodes[0].stop_reason, group.episodes[0].answer) == (StopReason.MAX_TOKENS, None)
    (group,), _ = roll(lambda body: (200, completion("<answer> 1655 </answer> and more", finish="length")))
    assert (group.episodes[0].stop_reason, group.episodes[0].answer) == (StopReason.ANSWERED, "1655")


def test_the_episodes_token_budget_ends_it():
    decoding = Decoding(turn_tokens=50, episode_tokens=55, temperature=0.0)
    (group,), server = roll(searcher, decoding=decoding)
    assert group.episodes[0].stop_reason is StopReason.MAX_TOKENS
    assert len(group.episodes[0].turns) == 1
    assert [body["max_tokens"] for body in server.requests] == [50]


def test_a_server_that_counts_no_tokens_has_no_cost_and_our_own_count_limits_it():
    def respond(body):
        status, reply = searcher(body)
        return status, {"choices": reply["choices"]}

    (group,), _ = roll(respond, price=Price(2.0, 10.0))
    (episode,) = group.episodes
    assert (episode.answer, episode.usage) == ("1655", {"num_requests": 2.0})
    words = len(["<think>look</think><search>", "Birch", "Mill", "</search>", "<information>made", "up</information>"])
    assert episode.turns[0].num_action_tokens == words
    (group,), _ = roll(respond, decoding=Decoding(turn_tokens=50, episode_tokens=20, temperature=0.0))
    assert group.episodes[0].stop_reason is StopReason.MAX_TOKENS


@pytest.mark.parametrize("protocol", ["tags", "tools"])
def test_a_served_model_plays_every_grammar_that_needs_no_sandbox(protocol):
    env = env_of(protocol)
    grammar = env.protocol

    def respond(body):
        if len(body["messages"]) == len(grammar.prompt(MILL)):
            return 200, completion(grammar.act(grammar.search_action("Birch Mill"), think="look"))
        assert "Built in 1655" in body["messages"][-1]["content"]
        return 200, completion(grammar.act(grammar.answer_action("1655"), think="found"))

    (group,), _ = roll(respond, env=env)
    (episode,) = group.episodes
    assert (episode.answer, episode.protocol, episode.num_searches) == ("1655", protocol, 1)
