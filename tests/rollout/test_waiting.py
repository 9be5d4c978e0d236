"""Episodes that wait for a tool, a program or a server hold up no other's decoding."""

from __future__ import annotations

import asyncio
import threading

import pytest

from seekling.env.tools import tool_from_function
from seekling.errors import InfrastructureError
from seekling.models import load_policy
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from seekling.rollout.sampler import Sample, SampleRequest
from seekling.types import StopReason
from tests.env.fakes import QUESTION, FakeLibrary, make_env
from tests.patience import FAILS_AFTER_S
from tests.rollout.policies import ScriptedSampler, encode, open_sampler


class Gate:
    """Shut until somebody outside opens it."""

    def __init__(self) -> None:
        self.is_awaited, self.is_open = threading.Event(), threading.Event()

    def pass_through(self) -> str:
        self.is_awaited.set()
        if not self.is_open.wait(FAILS_AFTER_S):
            raise InfrastructureError("nobody decoded meanwhile")
        return "The gate was opened."


class GatedLibrary(FakeLibrary):
    """Finds something once the gate is open."""

    def __init__(self, gate: Gate, *, may_wait: bool) -> None:
        super().__init__(may_wait=may_wait)
        self._gate = gate

    def search_pages(self, query, top_k=10):
        return [{"page_id": "gate", "title": self._gate.pass_through()}]

    def search(self, query, top_k):
        self._gate.pass_through()
        return super().search(query, top_k)


class OpensTheGate(ScriptedSampler):
    """The first session's turns are written; what an engine decodes for the others opens the gate."""

    def __init__(self, script, engine, gate: Gate) -> None:
        super().__init__([script])
        self._engine, self._gate = engine, gate
        self.num_decoded = 0

    async def sample(self, request: SampleRequest) -> Sample:
        if request.session == 1:
            return await super().sample(request)
        while not self._gate.is_awaited.is_set():
            await asyncio.sleep(0)
        sample = await self._engine.sample(request)
        self.num_decoded += len(sample.token_ids)
        self._gate.is_open.set()
        return sample

    def close_session(self, session: int) -> None:
        self._engine.close_session(session)


def roll_gated(tiny_model_dir, gate, first_turn, **settings):
    """Two episodes, of which the first waits at the gate and then answers; the first, and the sampler."""
    tokenizer = load_policy(tiny_model_dir, dtype="float32")[1]
    renderer = Renderer(tokenizer)
    env = make_env(count_tokens=renderer.count_tokens, max_turns=2, **settings)
    script = [(encode(tokenizer, first_turn), "stop"), (encode(tokenizer, "<answer> Alnwick </answer>"), "stop")]
    sampler = OpensTheGate(script, open_sampler(tiny_model_dir, episode_tokens=1024), gate)
    (group,) = Roller(env, sampler, renderer).rollout([QUESTION], Decoding(16, 1024), group_size=2)
    assert not group.failed
    assert sampler.num_decoded >= 16
    assert group.episodes[0].stop_reason is StopReason.ANSWERED
    return group.episodes[0]


def test_other_episodes_decode_while_one_waits_for_a_tool_of_the_users(tiny_model_dir):
    gate = Gate()

    def knock(word: str) -> str:
        """Knock and wait."""
        return gate.pass_through()

    episode = roll_gated(tiny_model_dir, gate, "<knock> now </knock>", user_tools=[tool_from_function(knock)])
    assert "The gate was opened." in episode.turns[0].observation


def test_other_episodes_decode_while_one_waits_for_a_search_server(tiny_model_dir):
    gate = Gate()
    library = GatedLibrary(gate, may_wait=True)
    episode = roll_gated(tiny_model_dir, gate, "<search> Fowey </search>", library=library)
    assert "Maud Trethewey" in episode.turns[0].observation


def test_other_episodes_decode_while_one_waits_for_a_program(tiny_model_dir, sandbox):
    """In the real sandbox; that a program runs is reason enough, whatever it calls."""
    gate = Gate()
    episode = roll_gated(
        tiny_model_dir,
        gate,
        "```python\nprint(search_pages('gate')[0]['title'])\n```\n",
        library=GatedLibrary(gate, may_wait=False),
        protocol="code",
        sandbox=sandbox,
    )
    assert "The gate was opened." in episode.turns[0].observation


@pytest.mark.parametrize("protocol", ["tags", "tools"])
def test_an_index_in_this_process_is_searched_between_decode_steps(protocol):
    def convert(miles: float) -> float:
        """Miles to kilometres."""
        return miles * 1.6

    assert not make_env(protocol=protocol).may_wait
    assert make_env(protocol=protocol, library=FakeLibrary(may_wait=True)).may_wait
    assert make_env(protocol=protocol, user_tools=[tool_from_function(convert)]).may_wait
    assert make_env(protocol="code").may_wait
