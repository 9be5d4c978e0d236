"""verl's own dataset, agent loop worker and registry, over our sampler instead of a vLLM server."""

import asyncio

import pytest

from seekling.env.protocol.stopping import StopRule
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from seekling.rollout.sampler import SampleRequest
from seekling.stacks.environment import open_environment
from tests.rollout.policies import ScriptedSampler, open_sampler

agent_loop = pytest.importorskip(
    "verl.experimental.agent_loop.agent_loop", reason="pip install verl", exc_type=ImportError
)
pytestmark = pytest.mark.filterwarnings("ignore")

PROMPT, RESPONSE = 200, 400
SCRIPT = ("<think> a mill </think><search> Alder Mill </search>", "<answer> 1612 </answer>")


class Server:
    """Answers as verl's client of its servers does: a script where there is one, else the model, greedily."""

    def __init__(self, sampler, renderer, script):
        self.sampler, self.renderer, self.script, self.requests = sampler, renderer, script, []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        from verl.workers.rollout.replica import TokenOutput

        self.requests.append(sampling_params)
        text = self.renderer.decode(prompt_ids)
        if "Alder" in text and self.script:
            ids = self.renderer.encode(self.script["</information>" in text])
            return TokenOutput(token_ids=list(ids), log_probs=[-1.0] * len(ids))
        sample = await self.sampler.sample(
            SampleRequest(
                session=hash(request_id),
                prompt_ids=tuple(prompt_ids),
                max_new_tokens=sampling_params["max_tokens"],
                stops=StopRule(tuple(sampling_params["stop"])),
                temperature=sampling_params["temperature"],
            )
        )
        return TokenOutput(token_ids=list(sample.token_ids), log_probs=list(sample.logprobs))


def configuration(village, model_dir):
    """verl's own settings, with ours on top."""
    import hydra
    from verl.trainer import config

    changes = [
        f"actor_rollout_ref.model.path={model_dir}",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"data.train_files={village}/train.parquet", f"data.val_files={village}/train.parquet",
        f"data.max_prompt_length={PROMPT}", f"data.max_response_length={RESPONSE}", "data.return_raw_chat=true",
        "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.temperature=0",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={village}/agent_loop.yaml",
    ]  # fmt: skip
    with hydra.initialize_config_dir(config_dir=config.__path__[0], version_base=None):
        return hydra.compose("ppo_trainer", overrides=changes)


def rollout(village, model_dir, server):
    """Every row of train.parquet, by verl's dataset and worker."""
    from verl.protocol import DataProto
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    config = configuration(village, model_dir)

    async def run():
        worker = agent_loop.AgentLoopWorker(config, server)
        rows = RLHFDataset(str(village / "train.parquet"), worker.tokenizer, config.data)
        batch = DataProto.from_single_dict(collate_fn([rows[number] for number in range(len(rows))]))
        return await worker.generate_sequences(batch)

    return asyncio.run(run())


@pytest.fixture(scope="module")
def sampler(tiny_model_dir):
    return open_sampler(tiny_model_dir, episode_tokens=PROMPT + RESPONSE)


@pytest.fixture(scope="module")
def renderer(tiny_model_dir):
    from transformers import AutoTokenizer

    return Renderer(AutoTokenizer.from_pretrained(tiny_model_dir))


def ours(village, sampler, renderer, place):
    """The question at a place of train.parquet, and its trajectory from our own rollout."""
    environment = open_environment(str(village))
    question = environment.world().train[place]
    num_prompt = len(renderer.prompt(environment.env.protocol.prompt(question)))
    decoding = Decoding(environment.recipe.rollout.turn_tokens, num_prompt + RESPONSE, temperature=0.0)
    (group,) = Roller(environment.env, sampler, renderer).rollout([question], decoding)
    return num_prompt, group.trajectories[0]


def assert_same(batch, place, num_prompt, trajectory):
    """Ids and mask of a row of verl's batch are those of a trajectory; gives back where in the responses they stand."""
    length = len(trajectory.token_ids_T) - num_prompt
    assert batch["prompts"][place][-num_prompt:].tolist() == trajectory.token_ids_T[:num_prompt].tolist()
    assert batch["responses"][place][:length].tolist() == trajectory.token_ids_T[num_prompt:].tolist()
    mask = trajectory.train_mask_T[num_prompt:].tolist() + [False] * (RESPONSE - length)
    assert batch["response_mask"][place].bool().tolist() == mask
    return length


def test_a_search_and_an_answer_are_scored_and_passages_are_masked(village, tiny_model_dir, sampler, renderer):
    batch = rollout(village, tiny_model_dir, server := Server(sampler, renderer, SCRIPT))
    place = [info["index"] for info in batch.non_tensor_batch["extra_info"]].index("single")
    script = ScriptedSampler([[(renderer.encode(text), "stop") for text in SCRIPT]])
    length = assert_same(batch.batch, place, *ours(village, script, renderer, place))
    assert "It was built in 1612" in renderer.decode(batch.batch["responses"][place][:length].tolist())
    assert not batch.batch["response_mask"][place][:length].bool().all()
    assert batch.batch["rm_scores"][place].tolist() == [0.0] * (length - 1) + [1.0] + [0.0] * (RESPONSE - length)
    assert batch.non_tensor_batch["num_searches"].tolist()[place] == 1.0
    assert batch.non_tensor_batch["__num_turns__"].tolist()[place] == 4
    assert server.requests[0]["stop"] == ["</search>", "</answer>"]


def test_verl_gets_the_ids_and_logprobs_that_our_own_rollout_gets(village, tiny_model_dir, sampler, renderer):
    batch = rollout(village, tiny_model_dir, Server(sampler, renderer, ()))
    for place in range(len(batch)):
        num_prompt, trajectory = ours(village, sampler, renderer, place)
        length = assert_same(batch.batch, place, num_prompt, trajectory)
        theirs = batch.batch["rollout_log_probs"][place][:length].numpy()
        assert abs(theirs - trajectory.logprobs_T[num_prompt:]).max() < 1e-5
