"""Sends a folder to a model hub, and knows what the hub wants a model card to begin with.

The client is huggingface_hub: HF_ENDPOINT names another hub than huggingface.co, HF_TOKEN or `hf auth login` the token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from seekling.errors import ConfigError, MissingExtraError, ServerError
from seekling.models.resolve import DEFAULT_HUB_ID, DEFAULT_WHEEL, cached_model

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_SIGN_IN = "sign in with `hf auth login`, or set HF_TOKEN to a token that may write"
_WHY = {
    401: f"the hub does not take the token; {_SIGN_IN}",
    403: f"the token may not write there; {_SIGN_IN}, or name an owner that it belongs to",
    404: "the hub knows no such owner or address; write OWNER/NAME, and look at HF_ENDPOINT if you set it",
}
_LICENCE = re.compile(r"---\n(?:(?!---\n).*\n)*?license: *([\w.-]+) *\n")
_NO_XET = "a hub that has no Xet storage takes files with HF_HUB_DISABLE_XET=1"


def push_folder(folder: Path, repo_id: str, *, more: Sequence[Path] = (), is_private: bool = False) -> str:
    """Upload a folder, and more files beside its own, as a model repository, made when it is missing; its address.

    What else the repository has stays.

    Raises:
        ConfigError: the name is none, or there is no token.
        ServerError: the hub cannot be reached, or refuses.
        MissingExtraError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise MissingExtraError("pushing needs huggingface_hub: pip install 'seekling[train]'") from None
    if not _REPOSITORY.fullmatch(repo_id):
        raise ConfigError(f"{repo_id!r} is no name of a repository; write OWNER/NAME")
    if not get_token():
        raise ConfigError(f"there is no token for the hub; {_SIGN_IN}")
    hub = HfApi()
    # The client's network errors are those of the HTTP library beneath it, which has changed more than once.
    failures = cast("tuple[type[Exception], ...]", (*HfHubHTTPError.__bases__, ValueError, RuntimeError))
    try:
        address = str(hub.create_repo(repo_id, private=is_private or None, exist_ok=True))
        message = "Upload with seekling"
        hub.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message)
        for file in more:
            hub.upload_file(path_or_fileobj=file, path_in_repo=file.name, repo_id=repo_id, commit_message=message)
    except failures as error:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
        said = " ".join(str(error).split()) or type(error).__name__
        why = f"{_WHY.get(status, 'try again later')}; {_NO_XET}" if "xet" in said else _WHY.get(status, "try again")
        raise ServerError(f"could not push to {repo_id} at {hub.endpoint} ({said[:300]}): {why}") from None
    return address


def published_model(spec: str) -> tuple[str, str]:
    """Hub id and licence of what a spec names; each is empty where it is not known. Asks no network."""
    if spec in ("default", f"wheel:{DEFAULT_WHEEL}"):
        return DEFAULT_HUB_ID, "apache-2.0"
    path = Path(spec).expanduser()
    repository = spec.partition("@")[0]
    repository = repository if _REPOSITORY.fullmatch(repository) and not path.exists() else ""
    folder = cached_model(spec)
    card = folder / "README.md" if folder is not None else None
    if card is None or not card.is_file():
        return repository, ""
    found = _LICENCE.match(card.read_text(encoding="utf-8", errors="replace"))
    return repository, found[1] if found else ""


def front_matter(
    *, base_model: str, licence: str, language: str, tags: Sequence[str], name: str, is_adapter: bool = False
) -> str:
    """The YAML with which a model card begins, with its fences; what is empty is left out."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        base_model=base_model or None,
        license=licence or None,
        language=language or None,
        library_name="peft" if is_adapter else "transformers",
        pipeline_tag="text-generation",
        tags=list(tags),
        model_name=name,
    )
    return f"---\n{data.to_yaml().strip()}\n---\n"
