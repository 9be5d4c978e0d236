"""A run as others get it: a folder with a model card, a GGUF file that llama.cpp loads, a repository on a hub."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from seekling.errors import ConfigError, ModelError, ServerError
from seekling.models.gguf import convert_gguf
from seekling.models.gguf_write import write_gguf
from seekling.models.hub import push_folder
from seekling.pipeline.card import CARD
from seekling.pipeline.export import export_run, package_run
from seekling.pipeline.stages import run_recipe
from seekling.report.formats import cell_text
from seekling.report.results import read_policies
from seekling.report.tables import TABLES
from tests.hub_server import TOKEN, hub_server
from tests.pipeline.runs import QuietReporter, village_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_model_dir):
    """A finished run with figures of SFT and SFT+RL."""
    folder = tmp_path_factory.mktemp("packaged")
    changes = {"sft": {"epochs": 3}, "rl": {"steps": 1, "kl_coefficient": 0.0}, "eval": {"stages": ["sft", "rl"]}}
    run_recipe(village_recipe(folder / "village", tiny_model_dir, **changes), folder / "run", QuietReporter())
    return folder / "run"


@pytest.fixture
def hub(monkeypatch):
    """The stand-in hub, as this process's hub."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with hub_server() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        yield server


# Cards


def test_the_card_has_the_runs_own_figures_and_nothing_of_the_machine(run, tmp_path, tiny_model_dir):
    export_run(run, tmp_path / "out")
    text = (tmp_path / "out" / CARD).read_text(encoding="utf-8")
    head, body = text.split("---\n")[1:]
    data = yaml.safe_load(head)
    assert (data["library_name"], data["pipeline_tag"], data["language"]) == ("transformers", "text-generation", "en")
    assert "base_model" not in data  # a folder on this machine is nobody else's base
    assert "license" not in data
    assert f"The licence of {tiny_model_dir.name} is not known" in body
    policies, _ = read_policies([run])
    for row in TABLES["results"](policies).rows:
        assert f"| {row[0]} | {cell_text(row[1])} |" in body
    assert {each.title for each in policies} == {"SFT", "SFT+RL"}
    assert "The row of this policy is SFT+RL." in body
    assert "SFT: 2 expert episodes of 2 questions" in body
    assert "Held out: 4 questions" in body
    assert 'train = "train.jsonl"' in body
    assert str(run.parent) not in text
    assert str(tiny_model_dir.parent) not in text


def test_a_run_that_nobody_judged_says_so_and_a_known_base_has_name_and_licence(run, tmp_path):
    unjudged = tmp_path / "unjudged"
    (unjudged / "checkpoints").mkdir(parents=True)
    (unjudged / "checkpoints" / "sft").symlink_to(run / "checkpoints" / "sft")
    toml = (run / "recipe.toml").read_text(encoding="utf-8").splitlines(keepends=True)
    changed = {"spec = ": 'spec = "default"\n', "project = ": 'project = "http://me:secret@host:1/x"\n'}
    lines = [next((new for name, new in changed.items() if line.startswith(name)), line) for line in toml]
    (unjudged / "recipe.toml").write_text("".join(lines), encoding="utf-8")
    export_run(unjudged, tmp_path / "out")
    text = (tmp_path / "out" / CARD).read_text(encoding="utf-8")
    assert "Not judged: no held-out questions were asked" in text
    assert " % [" not in text
    assert 'project = "(an address)"' in text
    data = yaml.safe_load(text.split("---\n")[1])
    assert (data["base_model"], data["license"]) == ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")


# GGUF


@pytest.mark.parametrize(("bits", "kind", "tolerance"), [(32, "F32", 0), (16, "F16", 1e-4), (8, "Q8_0", 1e-3)])
def test_a_gguf_file_is_the_policy_weight_for_weight_with_its_tokenizer(run, tmp_path, bits, kind, tolerance):
    policy = run / "checkpoints" / "best"
    assert write_gguf(policy, tmp_path / "policy.gguf", bits=bits) == kind
    (tmp_path / "back").mkdir()
    convert_gguf(tmp_path / "policy.gguf", tmp_path / "back")  # transformers reads it, with code of its own
    original, back = (AutoModelForCausalLM.from_pretrained(path) for path in (policy, tmp_path / "back"))
    weights = back.state_dict()
    for name, weight in original.state_dict().items():
        assert (weights[name] - weight.float()).abs().max() <= tolerance, name
    assert back.config.rope_parameters == original.config.rope_parameters
    mine, theirs = (AutoTokenizer.from_pretrained(path) for path in (policy, tmp_path / "back"))
    text = "<|im_start|>user\nWhen was Birch Mill built, 1655?<|im_end|>\n"
    assert theirs(text)["input_ids"] == mine(text)["input_ids"]
    assert theirs.chat_template == mine.chat_template
    assert (theirs.eos_token_id, theirs.pad_token_id) == (mine.eos_token_id, mine.pad_token_id)


def test_llama_cpp_loads_the_file_and_says_what_the_policy_says(run, tmp_path):
    """Greedily, from a prompt of the protocol."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("llama.cpp's binding is not here (pip install xllamacpp): no GGUF file was loaded by llama.cpp")
    package_run(run, gguf=tmp_path / "policy.gguf", bits=32)
    policy = run / "checkpoints" / "best"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(policy), AutoTokenizer.from_pretrained(policy)
    with (run / "episodes" / "eval-rl.jsonl").open(encoding="utf-8") as file:
        prompt = json.loads(next(file))["episode"]["prompt"]
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    said = tokenizer.decode(model.generate(ids, do_sample=False, max_new_tokens=24)[0, ids.shape[1] :].tolist())
    program = (
        "import json, sys, xllamacpp\n"
        "params = xllamacpp.CommonParams()\n"
        "params.model.path, params.n_ctx, params.warmup, params.verbosity = sys.argv[1], 1024, False, -1\n"
        "asked = {'prompt': sys.argv[2], 'temperature': 0, 'n_predict': 24}\n"
        "print('REPLY', json.dumps(xllamacpp.Server(params).handle_completions(asked)))\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "policy.gguf"), text]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    reply = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("REPLY "))[6:])
    assert reply["usage"]["prompt_tokens"] == ids.shape[1]
    assert said.startswith(reply["choices"][0]["text"])
    assert len(reply["choices"][0]["text"]) > 10


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "qwen3"}, "of the family 'qwen3'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}, "positions .* 'linear'"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(tiny_model_dir, tmp_path, changes, said):
    for path in tiny_model_dir.iterdir():
        (tmp_path / path.name).symlink_to(path)
    config = json.loads((tiny_model_dir / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    with pytest.raises(ModelError, match=rf"{said}.*convert_hf_to_gguf"):
        write_gguf(tmp_path, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_nothing_named_and_what_cannot_be_had_together_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="--out FOLDER, --gguf FILE, --push"):
        package_run(run)
    with pytest.raises(ConfigError, match="merged weights"):
        package_run(run, gguf=tmp_path / "x.gguf", is_adapter=True)
    assert not any(tmp_path.iterdir())


# Hubs


def test_the_command_pushes_weights_card_and_gguf_to_the_hub_that_the_environment_names(run, tmp_path):
    with hub_server() as server:
        environment = os.environ | {"HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        words = ["export", run, "--push", "amy/mill", "--private", "--gguf", tmp_path / "mill.gguf", "--bits", "8"]
        command = [sys.executable, "-c", "from seekling.cli.main import main; main()", *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"to {server.url}/amy/mill" in done.stdout
        assert server.private == {"amy/mill": True}
        files = server.files["amy/mill"]
    policy = run / "checkpoints" / "best"
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert files[name] == (policy / name).read_bytes()
    assert files["mill.gguf"] == (tmp_path / "mill.gguf").read_bytes()
    assert files[CARD].startswith(b"---\n")


def test_pushing_again_replaces_what_changed(hub, tmp_path):
    for text in ("first", "second"):
        (tmp_path / "note.txt").write_text(text, encoding="utf-8")
        assert push_folder(tmp_path, "amy/notes") == f"{hub.url}/amy/notes"
    assert hub.files == {"amy/notes": {"note.txt": b"second"}}
    assert hub.private == {"amy/notes": False}


def test_a_refusal_says_why_and_what_to_do(hub, tmp_path, monkeypatch):
    (tmp_path / "note.txt").write_text("x", encoding="utf-8")
    (tmp_path / "model.safetensors").write_text("x", encoding="utf-8")
    with pytest.raises(ServerError, match=r"may not write there.*HF_TOKEN"):
        push_folder(tmp_path, "bob/notes")
    with pytest.raises(ServerError, match="no such owner"):
        push_folder(tmp_path, "nobody/notes")
    for name in ("notes", "amy/no tes", "amy/a/b"):
        with pytest.raises(ConfigError, match="OWNER/NAME"):
            push_folder(tmp_path, name)
    with monkeypatch.context() as with_xet:
        with_xet.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
        with pytest.raises(ServerError, match="HF_HUB_DISABLE_XET=1"):
            push_folder(tmp_path, "amy/notes")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ServerError, match="does not take the token"):
        push_folder(tmp_path, "amy/notes")
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"no token.*hf auth login"):
        push_folder(tmp_path, "amy/notes")
    assert hub.files.get("amy/notes", {}) == {}


def test_a_hub_that_is_not_there_is_one_clear_error(hub, tmp_path, monkeypatch):
    (tmp_path / "note.txt").write_text("x", encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ServerError, match=r"amy/notes at http://127.0.0.1:9 .*refused"):
        push_folder(tmp_path, "amy/notes")
