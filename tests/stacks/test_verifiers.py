"""verifiers' own Env, Taskset and rollout, against an OpenAI-compatible server."""

import asyncio
import importlib
import shutil

import pytest

from seekling.serve import chat_form
from tests.chat_server import chat_server

vf = pytest.importorskip("verifiers.v1", reason="pip install verifiers", exc_type=ImportError)
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(shutil.which("uv") is None, reason="its harness needs uv"),
]


def play(env, url, num_tasks):
    """Episodes of the first tasks, by verifiers' own runner."""
    client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
    context = vf.ModelContext(model="policy", client=client, sampling=vf.Sampling(temperature=0.0, max_tokens=100))

    async def run():
        async with env.serving():
            slots = [slot for task in env.taskset.take(num_tasks) for slot in env.slots(task)]
            return await asyncio.gather(*(env.run_slot(slot, context) for slot in slots))

    return asyncio.run(run())


def policy(body):
    """Searches for the mill that is asked about, then answers 1612."""
    said = [message["content"] for message in body["messages"]]
    is_found = "</information>" in said[-1]
    text = "<answer> 1612 </answer>" if is_found else f"<search> {said[0].split()[-3]} Mill </search>"
    about = chat_form.about_reply("policy")
    words, end = (
        chat_form.chunk(about, {"role": "assistant", "content": text}),
        chat_form.chunk(about, {}, finish="stop"),
    )
    usage = chat_form.usage_chunk(about, chat_form.usage_of(10, 5))
    return 200, (words + end + usage + chat_form.DONE).encode()


def test_an_episode_of_verifiers_searches_and_is_scored_by_our_reward(village):
    env = importlib.import_module("seekling_env").load_environment(str(village))
    with chat_server(policy, {"Content-Type": "text/event-stream"}) as server:
        episodes = play(env, server.url, 2)
    assert [episode.ok for episode in episodes] == [True, True]
    found = {}
    for episode in episodes:
        (trace,) = episode.traces
        found[trace.task.data.id] = trace
        assert [message.role for message in trace.messages] == ["user", "assistant", "user", "assistant"]
    right, wrong = found["village/single"], found["village/birch"]
    assert (right.reward, right.metrics["num_searches"], right.info["stop_reason"]) == (1.0, 1.0, "answered")
    assert (wrong.reward, wrong.metrics["em"]) == (0.0, 0.0)
    assert "It was built in 1612" in right.messages[2].content


def test_a_server_that_fails_leaves_an_episode_without_a_reward(village):
    env = importlib.import_module("seekling_env").load_environment(str(village))
    with chat_server(lambda body: (400, {"error": {"message": "no"}})) as server:
        (episode,) = play(env, server.url, 1)
    assert not episode.ok
    assert all(not trace.rewards for trace in episode.traces)
