"""Where the weights of a Tinker service go: to its samplers, and into folders of this machine."""

from __future__ import annotations

import json
import tempfile
import urllib.parse
import urllib.request
import uuid
from pathlib import Path

import tinker

from seekling.errors import DataError
from seekling.files import replacing
from seekling.learn.checkpoint import LocalCheckpoint
from seekling.learn.learner import Learner
from seekling.learn.local import LocalLearner
from seekling.models import load_model, load_tokenizer
from seekling.models.load import Dtype
from seekling.rollout.sampler import Sampler
from seekling.scale.tinker_client import FILE, Service, TinkerLearner, TinkerSampler, failures_told, saved_path


class TinkerSync:
    """Names weights of the service to a sampler of the service; `base` is the directory of the untrained model."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def publish(self, learner: Learner, sampler: Sampler, version: int) -> None:
        """See `WeightSync.publish`."""
        _sampler(sampler).take(_learner(learner).sampling_client(), version)

    def publish_exported(self, folder: Path, sampler: Sampler, version: int) -> None:
        """See `WeightSync.publish_exported`; a DataError where the service has not the folder's policy."""
        path = saved_path(folder)
        if path is None and folder != self._base:
            raise DataError(f"{folder} was not exported from a Tinker service; ask it in this process: seekling eval")
        _sampler(sampler).take_saved(path, version)


class TinkerCheckpoint:
    """A `Checkpoint`: training states stay on the service, policies are fetched and merged here, in this dtype."""

    def __init__(self, dtype: Dtype) -> None:
        self._dtype: Dtype = dtype

    def save(self, learner: Learner, folder: Path) -> None:
        """See `Checkpoint.save`; what is written here is its path on the service."""
        with replacing(folder / FILE) as temporary:
            temporary.write_text(json.dumps(_learner(learner).state(), indent=2), encoding="utf-8")

    def load(self, learner: Learner, folder: Path) -> None:
        """See `Checkpoint.load`."""
        try:
            state = json.loads((folder / FILE).read_text(encoding="utf-8"))
            rank = int(state["rank"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder / FILE} names no training state of a Tinker service ({error}); go on with the "
                f"scale.engine that the run began with, or delete {folder} to start over"
            ) from None
        if rank != _learner(learner).rank:
            raise DataError(f"{folder} is of rank {rank}, the recipe of {_learner(learner).rank}; make them equal")
        _learner(learner).take_state(state)

    def export(self, learner: Learner, folder: Path, *, base: Path) -> None:
        """See `Checkpoint.export`; beside the weights a file says where the service keeps them."""
        far = _learner(learner)
        local = LocalLearner(load_model(base, dtype=self._dtype), lora_rank=far.rank)
        with tempfile.TemporaryDirectory(prefix="seekling-adapter-") as scratch, replacing(folder) as building:
            _download(far, Path(scratch))
            local.load_adapter(Path(scratch))
            LocalCheckpoint().export(local, building, base=base)
            (building / FILE).write_text(json.dumps({"path": far.save_for_sampler()}), encoding="utf-8")
        local.close()

    def export_adapter(self, learner: Learner, folder: Path, *, base: Path, base_name: str) -> None:
        """See `Checkpoint.export_adapter`."""
        with replacing(folder) as building:
            building.mkdir()
            _download(_learner(learner), building)
            config = building / "adapter_config.json"
            row = {**json.loads(config.read_text(encoding="utf-8")), "base_model_name_or_path": base_name}
            config.write_text(json.dumps(row, indent=2), encoding="utf-8")
            load_tokenizer(base).save_pretrained(str(building))


def _download(learner: TinkerLearner, folder: Path) -> None:
    """Adapters in PEFT's layout."""
    service = learner.service
    with failures_told("give out its weights"):
        saved = learner.client.save_weights_external(uuid.uuid4().hex).result().path
        rest = tinker.RestClient(base_url=service.address, api_key=service.key)
        for name, url in rest.get_external_weights_urls(saved).result().urls.items():
            with urllib.request.urlopen(_request(url, service), timeout=600) as reply:
                (folder / Path(name).name).write_bytes(reply.read())


def _request(url: str, service: Service) -> urllib.request.Request:
    """What asks for a file. The key goes to the service's own address alone, and not where that redirects to."""
    request = urllib.request.Request(url)
    own, asked = urllib.parse.urlsplit(service.address or ""), urllib.parse.urlsplit(url)
    if (asked.scheme, asked.netloc) == (own.scheme, own.netloc):
        request.add_unredirected_header("X-API-Key", service.key)
    return request


def _learner(learner: Learner) -> TinkerLearner:
    assert isinstance(learner, TinkerLearner), f"{type(learner).__name__} is not on a Tinker service"
    return learner


def _sampler(sampler: Sampler) -> TinkerSampler:
    assert isinstance(sampler, TinkerSampler), f"{type(sampler).__name__} is not on a Tinker service"
    return sampler
