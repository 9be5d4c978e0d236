"""What models were and what was saved of them, for programs that ask afterwards (`RestClient`). No HTTP here."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

from seekling.errors import DataError
from seekling.serve.requests import RefusedRequestError
from seekling.tinker.engine import Engine, Saved
from seekling.tinker.wire import SavedPath
from seekling.types import Json

_TYPES = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
_MAX_ROWS = 1000
_Row = TypeVar("_Row")


class Runs:
    """Models and saved weights of one engine as a key may see them; `name` is what its base model is called."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name

    def run(self, model_id: str, owner: str) -> dict[str, Json]:
        """A model that trains, or of which something was saved."""
        return self._run(model_id, owner, self._saved_of(model_id, owner))

    def runs(self, owner: str, limit: int, offset: int) -> dict[str, Json]:
        """Those that `run` would find, the newest first."""
        saved = defaultdict[str, list[Saved]](list)
        for each in self._engine.all_saved(owner):
            saved[each.path.model_id].append(each)
        training = [name for name, model in self._engine.models.items() if model.owner == owner]
        shown, cursor = _page(list(dict.fromkeys([*reversed(training), *saved])), limit, offset)
        return {"training_runs": [self._run(name, owner, saved[name]) for name in shown], "cursor": cursor}

    def checkpoints(self, model_id: str, owner: str) -> dict[str, Json]:
        """What was saved of a model, the newest first."""
        return {"checkpoints": [_checkpoint(each) for each in self._saved_of(model_id, owner)]}

    def all_checkpoints(self, owner: str, limit: int, offset: int) -> dict[str, Json]:
        """What was saved of any model, the newest first."""
        shown, cursor = _page(self._engine.all_saved(owner), limit, offset)
        return {"checkpoints": [_checkpoint(each) for each in shown], "cursor": cursor}

    def delete(self, path: SavedPath, owner: str) -> dict[str, Json]:
        """Remove what was saved under a path."""
        try:
            self._engine.delete(path, owner)
        except DataError as error:
            raise RefusedRequestError(404, str(error)) from None
        return {}

    def _saved_of(self, model_id: str, owner: str) -> list[Saved]:
        return [each for each in self._engine.all_saved(owner) if each.path.model_id == model_id]

    def _run(self, model_id: str, owner: str, saved: list[Saved]) -> dict[str, Json]:
        model = self._engine.models.get(model_id)
        if model is not None and model.owner == owner:
            return self._row(model_id, owner, model.rank, model.metadata, saved)
        if not saved:
            raise RefusedRequestError(404, f"there is no training run {model_id!r:.200} of yours")
        return self._row(model_id, owner, saved[0].rank, saved[0].metadata, saved)

    def _row(
        self, model_id: str, owner: str, rank: int, metadata: dict[str, str], saved: list[Saved]
    ) -> dict[str, Json]:
        newest = {kind: _newest(saved, kind) for kind in ("weights", "sampler_weights")}
        return {
            "training_run_id": model_id,
            "base_model": self._name,
            "model_owner": owner or "local",
            "is_lora": True,
            "lora_rank": rank,
            "last_request_time": _time(saved[0].time) if saved else datetime.datetime.now(datetime.UTC).isoformat(),
            "last_checkpoint": newest["weights"],
            "last_sampler_checkpoint": newest["sampler_weights"],
            "user_metadata": {**metadata},
        }


def _page(rows: Sequence[_Row], limit: int, offset: int) -> tuple[list[_Row], dict[str, Json]]:
    """So many rows from there on, and where they are among all."""
    limit = min(limit, _MAX_ROWS)
    return list(rows[offset : offset + limit]), {"offset": offset, "limit": limit, "total_count": len(rows)}


def _newest(saved: list[Saved], kind: str) -> dict[str, Json] | None:
    return next((_checkpoint(each) for each in saved if each.path.kind == kind), None)


def _checkpoint(saved: Saved) -> dict[str, Json]:
    return {
        "checkpoint_id": f"{saved.path.kind}/{saved.path.name}",
        "checkpoint_type": _TYPES[saved.path.kind],
        "time": _time(saved.time),
        "tinker_path": str(saved.path),
        "size_bytes": saved.num_bytes,
    }


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
