"""Programs written with the real tinker SDK, against the real server."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from seekling.models import load_policy
from seekling.serve.gate import GateRules
from seekling.serve.keys import Keys, add_key, revoke_key
from tests.app_server import send
from tests.patience import wait_until

tinker = pytest.importorskip("tinker", reason="the tinker SDK is not installed: pip install 'seekling[tinker]'")

from tests.tinker_server import tinker_server  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LINES = ["Bergen has a harbour built in 1037.", "Delft held its first fair in 1144.", "Evora lost its walls in 1181."]
ADAM = tinker.AdamParams(learning_rate=2e-3)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """The SDK leaves connections to the garbage collector, which would complain of them in some later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def url(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with tinker_server(tiny_model_dir, tmp_path_factory.mktemp("saves")) as address:
        yield address


@pytest.fixture
def service(url: str) -> Iterator[tinker.ServiceClient]:
    with tinker.ServiceClient(base_url=url, api_key="tml-local") as client:
        yield client


def make_model(service: tinker.ServiceClient, rank: int = 8, seed: int = 1) -> tinker.TrainingClient:
    return service.create_lora_training_client("tiny", rank=rank, seed=seed).result()


def text_datum(token_ids: list[int], **inputs: list[float]) -> tinker.Datum:
    given = {name: np.asarray(values, np.float32) for name, values in inputs.items()}
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(token_ids[:-1]),
        loss_fn_inputs={"target_tokens": np.asarray(token_ids[1:], np.int64), **given},
    )


def batch_of(model: tinker.TrainingClient) -> list[tinker.Datum]:
    tokenizer = model.get_tokenizer()
    lines = [tokenizer.encode(line) for line in LINES]
    return [text_datum(line, weights=[0.0] * 3 + [1.0] * (len(line) - 4)) for line in lines]


def train(model: tinker.TrainingClient, steps: int = 1, rate: float = ADAM.learning_rate) -> list[float]:
    data, losses, adam = batch_of(model), [], tinker.AdamParams(learning_rate=rate)
    for _ in range(steps):
        result, step = model.forward_backward(data, "cross_entropy"), model.optim_step(adam)
        losses.append(result.result().metrics["loss:sum"])
        step.result()
    return losses


def test_a_supervised_program_learns_what_it_samples_then(service):
    model = make_model(service, rank=16)
    losses = train(model, steps=60, rate=4e-3)
    assert losses[-1] < 0.85 * losses[0]
    result = model.forward(batch_of(model), "cross_entropy").result()
    by_hand = [
        -float(np.asarray(found["logprobs"].data) @ np.asarray(datum.loss_fn_inputs["weights"].data))
        for datum, found in zip(batch_of(model), result.loss_fn_outputs, strict=True)
    ]
    assert result.metrics["loss:sum"] == pytest.approx(sum(by_hand), rel=1e-4)
    sampler, tokenizer = model.save_weights_and_get_sampling_client().result(), model.get_tokenizer()
    prompt, rest = tokenizer.encode(LINES[0])[:4], tokenizer.encode(LINES[0])[4:]
    params = tinker.SamplingParams(max_tokens=len(rest), temperature=0.0)
    said = sampler.sample(tinker.ModelInput.from_ints(prompt), 1, params).result().sequences[0]
    assert said.tokens == rest
    assert said.stop_reason == "length"
    base = service.create_sampling_client(base_model="tiny").result()
    assert base.sample(tinker.ModelInput.from_ints(prompt), 1, params).result().sequences[0].tokens != rest


def test_sampler_and_learner_agree(service):
    model = make_model(service)
    train(model)
    sampler, tokenizer = model.save_weights_and_get_sampling_client().result(), model.get_tokenizer()
    prompt = tokenizer.encode("Question: When was the harbour built?")
    params = tinker.SamplingParams(max_tokens=12, seed=5, stop=["\n"])
    result = sampler.sample(tinker.ModelInput.from_ints(prompt), 4, params, include_prompt_logprobs=True).result()
    again = sampler.sample(tinker.ModelInput.from_ints(prompt), 4, params).result()
    assert [each.tokens for each in again.sequences] == [each.tokens for each in result.sequences]
    assert len({tuple(each.tokens) for each in result.sequences}) > 1
    whole = prompt + result.sequences[0].tokens
    scored = sampler.compute_logprobs(tinker.ModelInput.from_ints(whole)).result()
    assert scored[0] is None
    np.testing.assert_allclose(scored[len(prompt) :], result.sequences[0].logprobs, atol=1e-4)
    np.testing.assert_allclose(scored[1 : len(prompt)], result.prompt_logprobs[1:], atol=1e-4)
    learned = model.forward([text_datum(whole)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
    np.testing.assert_allclose(scored[1:], learned, atol=1e-4)
    last = sampler.compute_logprobs(tinker.ModelInput.from_ints(whole), prompt_logprobs_last_n=2).result()
    assert last[:-2] == [None] * (len(whole) - 2)
    np.testing.assert_allclose(last[-2:], scored[-2:], atol=1e-4)


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
def test_clipped_losses_take_their_bounds_from_the_request(service, loss):
    model = make_model(service)
    ids = model.get_tokenizer().encode(LINES[0])
    true = np.asarray(model.forward([text_datum(ids)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data)
    ones, off = np.ones(len(ids) - 1), np.log(2.0)
    datum = text_datum(ids, logprobs=list(true - off), advantages=list(ones))  # every ratio is 2
    config = {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5}
    found = model.forward([datum], loss, config).result().metrics["loss:sum"]
    plain = model.forward([datum], loss).result().metrics["loss:sum"]
    per_token = ones if loss == "ppo" else true
    assert found == pytest.approx(-1.5 * per_token.sum(), rel=1e-4)
    assert plain == pytest.approx(-1.2 * per_token.sum(), rel=1e-4)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT asks for its old name
def test_a_saved_state_goes_on_and_sampler_weights_are_peft(service, tmp_path, tiny_model_dir):
    with tinker_server(tiny_model_dir, tmp_path / "saves") as first, contextlib.ExitStack() as clients:
        client = clients.enter_context(tinker.ServiceClient(base_url=first, api_key="tml-local"))
        model = make_model(client)
        train(model, steps=3)
        path = model.save_state("half").result().path
        expected = train(model, steps=3)
        for_sampler = model.save_weights_for_sampler("done").result().path
        with pytest.raises(tinker.RequestFailedError, match="exists already"):
            model.save_state("half").result()
    # A server that was started anew.
    with tinker_server(tiny_model_dir, tmp_path / "saves") as second, contextlib.ExitStack() as clients:
        client = clients.enter_context(tinker.ServiceClient(base_url=second, api_key="tml-local"))
        resumed = client.create_training_client_from_state_with_optimizer(path).result()
        assert train(resumed, steps=3) == pytest.approx(expected, rel=1e-5)
        afresh = client.create_training_client_from_state(path).result()
        losses = train(afresh, steps=3)
        assert losses[0] == pytest.approx(expected[0], rel=1e-5)
        assert losses[2] != pytest.approx(expected[2], rel=1e-5)  # the optimizer had forgotten
        whole = tinker.ModelInput.from_ints(resumed.get_tokenizer().encode(LINES[1]))
        saved, live = (
            client.create_sampling_client(model_path=for_sampler).result(),
            resumed.save_weights_and_get_sampling_client().result(),
        )
        scores = [each.compute_logprobs(whole).result()[1:] for each in (saved, live)]
        np.testing.assert_allclose(*scores, atol=1e-4)
    from peft import PeftModel

    policy, _ = load_policy(tiny_model_dir, dtype="float32")
    folder = next((tmp_path / "saves").glob("*/sampler_weights/done"))
    ids = torch.tensor(whole.to_ints())
    with torch.no_grad():
        logits = PeftModel.from_pretrained(policy, folder)(input_ids=ids[None]).logits[0]
    loaded = torch.log_softmax(logits, -1)[:-1].gather(1, ids[1:, None])[:, 0]
    np.testing.assert_allclose(scores[0], loaded.numpy(), atol=1e-4)


def test_what_was_saved_is_listed_described_and_deleted(tiny_model_dir, tmp_path):
    said = {"renderer_name": "role_colon"}
    with tinker_server(tiny_model_dir, tmp_path / "saves") as first, contextlib.ExitStack() as clients:
        client = clients.enter_context(tinker.ServiceClient(base_url=first, api_key="tml-local"))
        model = client.create_lora_training_client("tiny", rank=4, user_metadata=said).result()
        rest = tinker.RestClient(base_url=first, api_key="tml-local")
        assert rest.get_training_run(model.model_id).result().last_checkpoint is None
        paths = [model.save_state("half").result().path, model.save_weights_for_sampler("done").result().path]
    with tinker_server(tiny_model_dir, tmp_path / "saves") as second, contextlib.ExitStack() as clients:
        client = clients.enter_context(tinker.ServiceClient(base_url=second, api_key="tml-local"))
        other = client.create_training_client_from_state(paths[0], user_metadata={"of": "other"}).result()
        rest = tinker.RestClient(base_url=second, api_key="tml-local")
        run = rest.get_training_run_by_tinker_path(paths[1]).result()
        assert (run.training_run_id, run.lora_rank, run.user_metadata) == (model.model_id, 4, said)
        assert [run.last_checkpoint.tinker_path, run.last_sampler_checkpoint.tinker_path] == paths
        assert rest.get_training_run(other.model_id).result().user_metadata == {"of": "other"}
        rows = rest.list_checkpoints(model.model_id).result().checkpoints
        assert [(row.tinker_path, row.checkpoint_type) for row in rows] == [
            (paths[1], "sampler"),
            (paths[0], "training"),
        ]
        assert all(row.size_bytes > 1000 for row in rows)
        listed = rest.list_training_runs(limit=1, offset=1).result()
        assert [each.training_run_id for each in listed.training_runs] == [model.model_id]
        assert listed.cursor.total_count == 2
        rest.delete_checkpoint_from_tinker_path(paths[0]).result()
        assert [row.tinker_path for row in rest.list_user_checkpoints().result().checkpoints] == paths[1:]
        with pytest.raises(tinker.NotFoundError, match="no weights of yours"):
            rest.delete_checkpoint_from_tinker_path(paths[0]).result()
        with pytest.raises(tinker.NotFoundError, match="no training run"):
            rest.get_training_run("nobody:train:0").result()


def test_prompts_that_wait_together_have_the_scores_they_have_alone(service):
    model = make_model(service)
    train(model)
    sampler, tokenizer = model.save_weights_and_get_sampling_client().result(), model.get_tokenizer()
    prompts = [tinker.ModelInput.from_ints(tokenizer.encode(LINES[0] + each)) for each in (*LINES, " x" * 40, "")]
    together = [each.result() for each in [sampler.compute_logprobs(prompt) for prompt in prompts * 8]]
    alone = [sampler.compute_logprobs(prompt).result() for prompt in prompts]
    assert len({tuple(each) for each in alone}) == len(prompts)
    for number, scores in enumerate(together):
        np.testing.assert_allclose(scores[1:], alone[number % len(prompts)][1:], atol=1e-4)


def test_models_do_not_mix(service):
    alone = train(make_model(service, seed=3), steps=4)
    one, other = make_model(service, seed=3), make_model(service, rank=4, seed=4)
    mixed = []
    for _ in range(4):
        mixed += train(one)
        train(other, steps=2)
        other.save_weights_and_get_sampling_client().result().compute_logprobs(
            tinker.ModelInput.from_ints([5, 6, 7])
        ).result()
    assert mixed == pytest.approx(alone, rel=1e-6)


def post(url: str, name: str, body: dict | bytes, key: str = "") -> tuple[int, dict]:
    kind = "application/x-protobuf" if isinstance(body, bytes) else "application/json"
    sent = send(f"{url}/api/v1/{name}", body, **{"Content-Type": kind, "X-API-Key": key})
    return sent.status, sent.json


def get(url: str, name: str, key: str = "") -> int:
    return send(f"{url}/api/v1/{name}", **{"X-API-Key": key}).status


def test_what_a_program_had_goes_when_nothing_is_heard_of_it(tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("seekling.tinker.handlers._FORGOTTEN_S", 0.5)
    monkeypatch.setattr("seekling.tinker.app._FORGETTING_S", 0.05)
    with tinker_server(tiny_model_dir, tmp_path / "saves") as address:
        program = {"tags": [], "user_metadata": None, "sdk_version": "0"}
        session = post(address, "create_session", program)[1]["session_id"]
        body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
        name = post(address, "create_sampling_session", body)[1]["sampling_session_id"]
        assert get(address, f"samplers/{name}") == 200
        wait_until(lambda: get(address, f"samplers/{name}") == 404)
        assert post(address, "session_heartbeat", {"session_id": session})[0] == 404


def test_a_request_that_is_sent_twice_is_done_once(url, service):
    from tinker.proto.request_conv import forward_backward_request_to_proto

    model = make_model(service)
    data = batch_of(model)
    inputs = tinker.types.ForwardBackwardInput(data=data, loss_fn="cross_entropy")
    request = tinker.types.ForwardBackwardRequest(forward_backward_input=inputs, model_id=model.model_id, seq_id=1)
    raw = forward_backward_request_to_proto(request).SerializeToString()
    assert post(url, "forward_backward", raw) == post(url, "forward_backward", raw)
    step = {"model_id": model.model_id, "seq_id": 2, "adam_params": {"learning_rate": 1e-3}}
    promises = [post(url, "optim_step", step) for _ in range(3)]
    assert promises[0][0] == 200
    assert promises[0] == promises[1] == promises[2]
    answers = [post(url, "retrieve_future", {"request_id": promises[0][1]["request_id"]}) for _ in range(2)]
    assert answers[0] == answers[1]
    once = make_model(service)
    once.forward_backward(data, "cross_entropy").result()
    assert answers[0][1]["metrics"]["grad_norm:mean"] == pytest.approx(
        once.optim_step(tinker.AdamParams(learning_rate=1e-3)).result().metrics["grad_norm:mean"], rel=1e-6
    )


def test_more_than_may_wait_is_told_to_wait_and_the_sdk_does(tiny_model_dir, tmp_path):
    with (
        tinker_server(tiny_model_dir, tmp_path / "saves", waiting_bytes=20_000) as address,
        tinker.ServiceClient(base_url=address, api_key="tml-local") as client,
    ):
        sampler = client.create_sampling_client(base_model="tiny").result()
        params = tinker.SamplingParams(max_tokens=200, stop=[])
        asked = [sampler.sample(tinker.ModelInput.from_ints([5, 6, 7]), 16, params) for _ in range(2)]
        while (status := post(address, "client/config", {"sdk_version": "0"})[0]) == 200:
            assert not asked[0].future().done(), "nobody was told to wait"
        assert status == 429
        assert [len(each.result().sequences) for each in asked] == [16, 16]


def test_wrong_input_is_told_in_the_sdks_own_errors(service):
    sampler = service.create_sampling_client(base_model="tiny").result()
    prompt, params = tinker.ModelInput.from_ints([5, 6]), tinker.SamplingParams
    unshifted = tinker.Datum(prompt, {"target_tokens": np.asarray([9, 9])})
    for ask, match in (
        (lambda: service.create_lora_training_client("tiny", train_mlp=False), "train_mlp"),
        (lambda: sampler.sample(prompt, 1, params(top_k=5)), "top_k"),
        (lambda: sampler.sample(tinker.ModelInput.from_ints([10**6]), 1, params()), "vocabulary"),
        (lambda: service.create_sampling_client(model_path="tinker://../weights/x"), "no path"),
        *(
            (lambda wrong=wrong, loss=loss: make_model(service).forward_backward([wrong], loss), match)
            for wrong, loss, match in (
                (text_datum([5, 6, 7], weights=[1.0]), "cross_entropy", "shape"),
                (text_datum([5, 6, 7], advantages=[1.0, 1.0]), "cross_entropy", "advantages"),
                (text_datum([5, 6, 7], weights=[1.0, float("nan")]), "cross_entropy", "finite"),
                (unshifted, "cross_entropy", "shifted by one"),
                (text_datum([5, 6, 7]), "gspo", "gspo"),
            )
        ),
    ):
        with pytest.raises(tinker.BadRequestError, match=match):
            ask().result()
    with pytest.raises(tinker.NotFoundError, match="or tiny"):
        service.create_lora_training_client("huge").result()
    with pytest.raises(tinker.RequestFailedError, match="without gradients") as failed:
        make_model(service).optim_step(ADAM).result()
    assert failed.value.category == "user"


def test_keys_are_asked_for_kept_apart_and_taken_back(tiny_model_dir, tmp_path):
    keys = tmp_path / "keys.json"
    alice, bob = (f"tml-{add_key(keys, name)}" for name in ("alice", "bob"))
    rules = GateRules(Keys(keys))
    with tinker_server(tiny_model_dir, tmp_path / "saves", rules) as address, contextlib.ExitStack() as clients:
        with pytest.raises(tinker.AuthenticationError):
            tinker.ServiceClient(base_url=address, api_key="tml-guess").create_sampling_client(base_model="tiny")
        hers = tinker.ServiceClient(base_url=address, api_key=alice)
        clients.callback(hers.holder.close)
        model = make_model(hers)
        train(model)
        path = model.save_weights_for_sampler("mine").result().path
        his = clients.enter_context(tinker.ServiceClient(base_url=address, api_key=bob))
        with pytest.raises(tinker.BadRequestError, match="no weights of yours"):
            his.create_sampling_client(model_path=path).result()
        external = model.save_weights_external("out").result().path
        url = tinker.RestClient(base_url=address, api_key=alice).get_external_weights_urls(external).result().urls
        file = url["adapter_model.safetensors"].removeprefix(f"{address}/api/v1/")
        assert [get(address, file, key) for key in (alice, bob, "")] == [200, 400, 401]
        assert get(address, file.replace("adapter_model.safetensors", "about.json"), alice) == 404
        assert post(address, "get_info", {"model_id": model.model_id}, bob)[0] == 404
        assert post(address, "get_info", {"model_id": model.model_id}, alice)[0] == 200
        assert get(address, f"training_runs/{model.model_id}", alice) == 200
        assert get(address, f"training_runs/{model.model_id}", bob) == 404
        lists = [tinker.RestClient(base_url=address, api_key=key).list_user_checkpoints() for key in (alice, bob)]
        assert [len(each.result().checkpoints) for each in lists] == [2, 0]
        revoke_key(keys, "alice")
        with pytest.raises(tinker.AuthenticationError):
            train(model)
