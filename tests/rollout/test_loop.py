"""Episodes from scripted turns: exact ids, masks and requests per protocol; failures, groups, seeds.

Numbers of pitfalls are those of the list that tests/env/test_environment.py began: 5, 9, 10 and 12 are here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from seekling.config import EnvConfig
from seekling.env.environment import SearchEnv
from seekling.env.protocol import make_protocol
from seekling.env.tools import library_tools
from seekling.errors import InfrastructureError
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer, expert_trajectory
from seekling.rollout.sampler import SampleRequest
from seekling.types import Question, StopReason
from tests.env.fakes import QUESTION, FakeLibrary, make_env
from tests.rollout.policies import ScriptedSampler, encode, logprobs_of, open_sampler

DECODING = Decoding(turn_tokens=64, episode_tokens=1024)
FOWEY = "The harbour was built in 1457 by Maud Trethewey."
SEARCH, ANSWER = "<search> Fowey </search>", "<answer> Alnwick </answer>"
INFORMATION = f'\n\n<information>Doc 1(Title: "Harbour of Fowey") {FOWEY}</information>\n\n'


@pytest.fixture(scope="module")
def renderer(tokenizer):
    return Renderer(tokenizer)


def roll(env, renderer, scripts, questions=(QUESTION,), decoding=DECODING, **settings):
    sampler = ScriptedSampler(scripts)
    return Roller(env, sampler, renderer).rollout(questions, decoding, **settings), sampler


def one_episode(env, renderer, turns, **settings):
    (group,), sampler = roll(env, renderer, [turns], **settings)
    (episode,), (trajectory,) = group.episodes, group.trajectories
    return episode, trajectory, sampler


def asked(tokenizer, env):
    """The prompt of `QUESTION`, as the tiny model's template writes it."""
    messages = [f"<|im_start|>{each.role}\n{each.content}<|im_end|>\n" for each in env.protocol.prompt(QUESTION)]
    return encode(tokenizer, "".join(messages) + "<|im_start|>assistant\n")


def message(tokenizer, text):
    """An observation of a user's, up to the start of the next turn."""
    parts = ("\n<|im_start|>user\n", text, "<|im_end|>\n<|im_start|>assistant\n")
    return tuple(token_id for part in parts for token_id in encode(tokenizer, part))


def assert_segments(trajectory, segments):
    """Compare with hand-written (ids, is trained) pieces; trained ones have the script's log-probabilities."""
    assert trajectory.token_ids_T.tolist() == [token_id for ids, _ in segments for token_id in ids]
    assert trajectory.train_mask_T.tolist() == [is_trained for ids, is_trained in segments for _ in ids]
    logprobs = [
        value for ids, is_trained in segments for value in (logprobs_of(ids) if is_trained else [0.0] * len(ids))
    ]
    assert trajectory.logprobs_T.tolist() == logprobs


def test_tags_mask_prompt_information_and_complaint_and_train_every_sampled_token(tokenizer, renderer):
    end = tokenizer.eos_token_id
    env = make_env(top_k=1, count_tokens=renderer.count_tokens)
    mumble = (*encode(tokenizer, "I know it."), end)
    turns = [(encode(tokenizer, SEARCH), "stop"), (mumble, "eos"), (encode(tokenizer, ANSWER), "stop")]
    episode, trajectory, sampler = one_episode(env, renderer, turns)
    complaint = (
        "\nMy last action was not valid: it holds no tag that is both opened and closed. "
        "I must write one of the tags search, answer and close it. Again:\n"
    )
    prompt = asked(tokenizer, env)
    segments = [
        (prompt, False),
        (turns[0][0], True),
        (encode(tokenizer, INFORMATION), False),
        (mumble, True),
        (encode(tokenizer, complaint), False),
        (turns[2][0], True),
    ]
    assert_segments(trajectory, segments)
    assert [turn.num_action_tokens for turn in episode.turns] == [len(ids) for ids, _ in turns]
    assert [turn.num_observation_tokens for turn in episode.turns] == [len(segments[2][0]), len(segments[4][0]), 0]
    for turn, (token_ids, _) in zip(episode.turns, turns, strict=True):
        assert sum(turn.action_lengths) == len(turn.action)
        assert turn.action_logprobs == tuple(round(value, 2) for value in logprobs_of(token_ids))
    assert (episode.answer, episode.stop_reason, episode.num_searches) == ("Alnwick", StopReason.ANSWERED, 1)
    # Each request is everything so far, id for id.
    ids = trajectory.token_ids_T.tolist()
    starts = [len(prompt), len(ids) - sum(len(s[0]) for s in segments[3:]), len(ids) - len(turns[2][0])]
    assert [list(request.prompt_ids) for request in sampler.requests] == [ids[:start] for start in starts]
    assert sampler.requests[0].stops.strings == ("</search>", "</answer>")
    assert sampler.closed == [1]


def test_tools_close_the_turn_with_masked_tokens_and_train_a_sampled_end(tokenizer, renderer):
    end = tokenizer.eos_token_id
    env = make_env(protocol="tools", top_k=1, count_tokens=renderer.count_tokens)
    call = encode(tokenizer, '<tool_call>{"name": "search", "arguments": {"query_list": ["Fowey"]}}</tool_call>')
    mumble, answer = (*encode(tokenizer, "I know it."), end), (*encode(tokenizer, "Answer: Alnwick"), end)
    _, trajectory, _ = one_episode(env, renderer, [(call, "stop"), (mumble, "eos"), (answer, "eos")])
    response = f'<tool_response>\nQuery: Fowey\nDocument 1:\n"Harbour of Fowey"\n{FOWEY}\n</tool_response>'
    complaint = (
        "Your last turn was not valid: it holds neither a call nor the answer mark. "
        "Make one call of a tool, as JSON in its tags, or write the answer after its mark, once."
    )
    segments = [
        (asked(tokenizer, env), False),
        (call, True),
        ((end, *message(tokenizer, response)), False),
        (mumble, True),
        (message(tokenizer, complaint), False),
        (answer, True),
    ]
    assert_segments(trajectory, segments)


def test_code_masks_what_programs_print(tokenizer, renderer):
    env = make_env(protocol="code", count_tokens=renderer.count_tokens)
    program = encode(tokenizer, "```python\nprint(read_section('alnwick:full'))\n```\n")
    answer = encode(tokenizer, ANSWER)
    _, trajectory, sampler = one_episode(env, renderer, [(program, "stop"), (answer, "stop")])
    output = "Output:\nAlnwick lies on the river Aln and holds a fair in May."
    observed = (tokenizer.eos_token_id, *message(tokenizer, output))
    segments = [(asked(tokenizer, env), False), (program, True), (observed, False), (answer, True)]
    assert_segments(trajectory, segments)
    assert sampler.requests[0].stops.strings == ("\n```\n", "</answer>")


def test_pitfall_5_sampled_ids_are_kept_where_encoding_their_text_gives_others(tokenizer, renderer):
    letters = tuple(token_id for letter in SEARCH for token_id in encode(tokenizer, letter))
    assert encode(tokenizer, tokenizer.decode(letters)) != letters
    env = make_env(top_k=1, count_tokens=renderer.count_tokens)
    _, trajectory, sampler = one_episode(env, renderer, [(letters, "stop"), (encode(tokenizer, ANSWER), "stop")])
    sampled = trajectory.token_ids_T[trajectory.train_mask_T].tolist()
    assert sampled == [*letters, *encode(tokenizer, ANSWER)]
    second = sampler.requests[1].prompt_ids
    first = sampler.requests[0].prompt_ids
    assert second == (*first, *letters, *encode(tokenizer, INFORMATION))


def test_pitfall_5_bytes_that_are_no_text_are_kept_too(tokenizer, renderer):
    half = encode(tokenizer, "é")[:1]
    assert tokenizer.decode(half) == "\ufffd"
    turn = (*half, *encode(tokenizer, ANSWER))
    _, trajectory, _ = one_episode(make_env(), renderer, [(turn, "stop")])
    assert tuple(trajectory.token_ids_T[trajectory.train_mask_T]) == turn


class UnreliableLibrary(FakeLibrary):
    """Down for some queries."""

    def search(self, query, top_k):
        if "down" in query:
            raise InfrastructureError("the search server did not answer")
        return super().search(query, top_k)


@pytest.mark.parametrize("may_wait", [False, True])
def test_pitfall_9_a_search_that_fails_ends_the_episode_outside_its_group(tokenizer, renderer, may_wait):
    env = make_env(library=UnreliableLibrary(may_wait=may_wait), top_k=1, count_tokens=renderer.count_tokens)
    good = [(encode(tokenizer, SEARCH), "stop"), (encode(tokenizer, ANSWER), "stop")]
    bad = [(encode(tokenizer, "<search> down </search>"), "stop"), (encode(tokenizer, ANSWER), "stop")]
    (group,), sampler = roll(env, renderer, [good, bad, good, bad], group_size=4)
    assert [e.stop_reason for e in group.episodes] == [StopReason.ANSWERED] * 2
    assert len(group.trajectories) == 2
    assert [e.stop_reason for e in group.failed] == [StopReason.INFRA_FAILURE] * 2
    assert {e.failure for e in group.failed} == {"InfrastructureError: the search server did not answer"}
    for failed in group.failed:
        assert [turn.observation for turn in failed.turns] == [""]
        assert failed.answer is None
    # The policy was never asked to go on after an empty passage.
    assert len(sampler.requests) == 2 * 2 + 2 * 1
    assert sorted(sampler.closed) == [1, 2, 3, 4]


class BrokenSampler(ScriptedSampler):
    """Fails in the second turn of the first episode."""

    async def sample(self, request: SampleRequest):
        sample = await super().sample(request)
        if request.session == 1 and self._turns[1] == 2:
            raise InfrastructureError("the engine is gone")
        return sample


def test_pitfall_9_a_sampler_that_fails_ends_the_episode_with_what_there_was(tokenizer, renderer):
    sampler = BrokenSampler([[(encode(tokenizer, SEARCH), "stop"), (encode(tokenizer, ANSWER), "stop")]])
    (group,) = Roller(make_env(), sampler, renderer).rollout([QUESTION], DECODING, group_size=3)
    assert len(group.episodes) == len(group.trajectories) == 2
    (failed,) = group.failed
    assert (failed.stop_reason, failed.failure) == (StopReason.INFRA_FAILURE, "the engine is gone")
    assert [turn.action for turn in failed.turns] == [SEARCH]


def test_pitfall_10_the_same_id_in_two_data_sets_is_two_groups_with_seeds_of_their_own(tokenizer, renderer):
    questions = [replace(QUESTION, source="nq"), replace(QUESTION, source="hotpotqa")]
    scripts = [[(encode(tokenizer, f"<answer> {name} </answer>"), "stop")] for name in "abcd"]
    groups, _ = roll(make_env(), renderer, scripts, questions, group_size=2, seed=5)
    assert [group.question for group in groups] == questions
    assert [[e.answer for e in group.episodes] for group in groups] == [["a", "b"], ["c", "d"]]
    assert [{(e.source, e.question_id) for e in group.episodes} for group in groups] == [
        {("nq", "7")},
        {("hotpotqa", "7")},
    ]
    seeds = [e.seed for group in groups for e in group.episodes]
    assert len(set(seeds)) == 4


def test_the_same_question_twice_in_one_rollout_is_sampled_twice(tokenizer, renderer):
    groups, sampler = roll(
        make_env(), renderer, [[(encode(tokenizer, ANSWER), "stop")]], [QUESTION, QUESTION], group_size=2
    )
    assert len({e.seed for group in groups for e in group.episodes}) == 4
    assert len({request.seed for request in sampler.requests}) == 4


def test_a_turn_that_the_budget_cut_is_not_read_even_if_it_looks_complete(tokenizer, renderer):
    episode, trajectory, sampler = one_episode(make_env(), renderer, [(encode(tokenizer, ANSWER), "length")])
    assert (episode.stop_reason, episode.answer) == (StopReason.MAX_TOKENS, None)
    assert trajectory.train_mask_T.sum() == len(encode(tokenizer, ANSWER))
    assert sampler.requests[0].max_new_tokens == 64


def test_the_budget_of_an_episode_bounds_each_request(tokenizer, renderer):
    env = make_env(top_k=1, count_tokens=renderer.count_tokens)
    prompt = renderer.prompt(env.protocol.prompt(QUESTION))
    search, information = encode(tokenizer, SEARCH), encode(tokenizer, INFORMATION)
    budget = len(prompt) + len(search) + len(information) + 9
    _, _, sampler = one_episode(
        env, renderer, [(search, "stop"), (encode(tokenizer, ANSWER), "stop")], decoding=Decoding(64, budget)
    )
    assert [request.max_new_tokens for request in sampler.requests] == [min(64, budget - len(prompt)), 9]


def test_a_prompt_longer_than_the_episode_ends_as_out_of_tokens(tiny_model_dir, renderer):
    roller = Roller(make_env(), open_sampler(tiny_model_dir, episode_tokens=64), renderer)
    ((group),) = roller.rollout([QUESTION], Decoding(64, 64))
    (episode,), (trajectory,) = group.episodes, group.trajectories
    assert episode.stop_reason is StopReason.MAX_TOKENS
    assert not trajectory.train_mask_T.any()


def test_decoding_settings_reach_the_sampler_and_the_record(tokenizer, renderer):
    decoding = Decoding(turn_tokens=9, episode_tokens=1024, temperature=0.7, top_p=0.9, min_p=0.1)
    turns = [(encode(tokenizer, SEARCH), "stop"), (encode(tokenizer, ANSWER), "stop")]
    episode, trajectory, sampler = one_episode(make_env(), renderer, turns, decoding=decoding, seed=3)
    assert {(r.temperature, r.top_p, r.min_p, r.max_new_tokens) for r in sampler.requests} == {(0.7, 0.9, 0.1, 9)}
    assert len({r.seed for r in sampler.requests}) == 2
    assert (episode.temperature, episode.policy_version, trajectory.policy_versions) == (0.7, 0, (0, 0))
    assert (trajectory.temperature, trajectory.top_p, trajectory.min_p) == (0.7, 0.9, 0.1)


class AgeingSampler(ScriptedSampler):
    """Gets new weights after every sample."""

    async def sample(self, request: SampleRequest):
        sample = await super().sample(request)
        self.policy_version += 1
        return sample


def test_a_trajectory_keeps_the_version_of_every_sample_and_its_episode_the_oldest(tokenizer, renderer):
    sampler = AgeingSampler([[(encode(tokenizer, SEARCH), "stop"), (encode(tokenizer, ANSWER), "stop")]], 3)
    (group,) = Roller(make_env(), sampler, renderer).rollout([QUESTION], DECODING)
    assert group.trajectories[0].policy_versions == (3, 4)
    assert group.episodes[0].policy_version == 3


class GuessingSampler(ScriptedSampler):
    """Says of every sample how many tokens were guessed on the way."""

    async def sample(self, request: SampleRequest):
        return replace(await super().sample(request), num_drafted=5, num_accepted=2)


def test_an_episode_says_how_many_tokens_were_guessed_ahead(tokenizer, renderer):
    script = [(encode(tokenizer, SEARCH), "stop"), (encode(tokenizer, ANSWER), "stop")]
    for sampler, usage in (
        (GuessingSampler([script]), {"drafted_tokens": 10.0, "accepted_tokens": 4.0}),
        (ScriptedSampler([script]), {}),
    ):
        (group,) = Roller(make_env(), sampler, renderer).rollout([QUESTION], DECODING)
        assert group.episodes[0].usage == usage


def test_groups_are_reported_as_they_end_and_returned_in_order(tokenizer, renderer):
    search, answer = (encode(tokenizer, SEARCH), "stop"), (encode(tokenizer, ANSWER), "stop")
    questions = [replace(QUESTION, id=name) for name in ("slow", "quick")]
    ended = []
    groups, _ = roll(
        make_env(), renderer, [[search, search, answer], [answer]], questions, on_group=lambda g: ended.append(g)
    )
    assert [group.question.id for group in ended] == ["quick", "slow"]
    assert [group.question.id for group in groups] == ["slow", "quick"]


def rolled_ids(folder, renderer, *, seed, in_flight, may_wait=False):
    env = make_env(library=FakeLibrary(may_wait=may_wait), top_k=1, count_tokens=renderer.count_tokens, max_turns=3)
    sampler = open_sampler(folder, in_flight=in_flight, episode_tokens=1024)
    roller = Roller(env, sampler, renderer)
    questions = [replace(QUESTION, id=str(n), question=f"Who built harbour {n}") for n in range(3)]
    groups = roller.rollout(questions, Decoding(12, 1024), group_size=2, seed=seed)
    return [t.token_ids_T.tolist() for group in groups for t in group.trajectories]


def test_a_seed_gives_the_same_episodes_however_many_run_at_once(tiny_model_dir, renderer):
    first = rolled_ids(tiny_model_dir, renderer, seed=1, in_flight=8)
    assert rolled_ids(tiny_model_dir, renderer, seed=1, in_flight=2) == first
    assert rolled_ids(tiny_model_dir, renderer, seed=1, in_flight=8, may_wait=True) == first
    assert rolled_ids(tiny_model_dir, renderer, seed=2, in_flight=8) != first


def native_env(renderer):
    config = EnvConfig(protocol="tools")
    tools = library_tools(FakeLibrary(), 1)
    protocol = make_protocol(config, tools, native_tools=True)
    return SearchEnv(protocol, tools, config, count_tokens=renderer.count_tokens)


@pytest.mark.parametrize("protocol", ["tags", "code", "tools", "native tools"])
@pytest.mark.parametrize("is_quoted", [False, True])
def test_an_experts_trajectory_is_what_a_rollout_of_the_same_tokens_records(tokenizer, renderer, protocol, is_quoted):
    if protocol == "native tools":
        env = native_env(renderer)
    else:
        env = make_env(protocol=protocol, top_k=1, count_tokens=renderer.count_tokens)
    grammar = env.protocol
    invalid = f"<think> I could write {grammar.act(grammar.search_action('x'))}" if is_quoted else "I cannot find it."
    actions = [
        grammar.act(grammar.search_action("Fowey"), think="I need the builder."),
        invalid,  # and not ended by a stop string
        grammar.act(grammar.answer_action("Alnwick"), think="I found it."),
    ]
    turns = []
    for action in actions:
        is_stopped = grammar.stops.read(action).end is not None
        ids = encode(tokenizer, action) + (() if is_stopped else (tokenizer.eos_token_id,))
        turns.append((ids, "stop" if is_stopped else "eos"))
    episode, sampled, _ = one_episode(env, renderer, turns)
    assert episode.stop_reason is StopReason.ANSWERED
    written = expert_trajectory(episode, grammar, renderer)
    assert written.token_ids_T.tolist() == sampled.token_ids_T.tolist()
    assert written.train_mask_T.tolist() == sampled.train_mask_T.tolist()
    assert not written.logprobs_T.any()
    assert (written.token_ids_T.dtype, written.logprobs_T.dtype) == (np.int64, np.float32)


def test_a_mistake_of_ours_is_not_swallowed_as_a_failed_episode(renderer):
    with pytest.raises(IndexError):
        roll(make_env(), renderer, [[]], questions=[Question("1", "Who?", ("x",))])


def test_each_episode_draws_its_temperature_from_its_seed_and_records_it(tokenizer, renderer):
    env = make_env(count_tokens=renderer.count_tokens)
    decoding = Decoding(64, 1024, temperature=1.0, temperature_range=(0.7, 1.15))
    script = [[(encode(tokenizer, ANSWER), "stop")]]
    (group,), sampler = roll(env, renderer, script, decoding=decoding, group_size=200, seed=4)
    (again,), _ = roll(env, renderer, script, decoding=decoding, group_size=200, seed=4)
    temperatures = [episode.temperature for episode in group.episodes]
    assert temperatures == [episode.temperature for episode in again.episodes]
    assert [request.temperature for request in sampler.requests] == temperatures
    assert [trajectory.temperature for trajectory in group.trajectories] == temperatures
    assert len(set(temperatures)) == 200
    # Mean and deviation of the uniform distribution, each within four standard errors.
    assert np.mean(temperatures) == pytest.approx(0.925, abs=4 * 0.45 / np.sqrt(12 * 200))
    assert np.std(temperatures) == pytest.approx(0.45 / np.sqrt(12), abs=0.02)
    assert min(temperatures) >= 0.7
    assert max(temperatures) <= 1.15
