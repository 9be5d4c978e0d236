"""The policies that a run keeps as plain directories: merged weights and, where adapters train, these alone."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from seekling.config import Recipe
from seekling.doctor.memory import Stage
from seekling.errors import ConfigError
from seekling.files import link_or_copy, replacing
from seekling.learn.learner import Learner
from seekling.models import resolve_model
from seekling.models.gguf_write import Bits, write_gguf
from seekling.models.hub import push_folder
from seekling.pipeline.card import write_card
from seekling.pipeline.implementations import new_checkpoint, new_learner
from seekling.serve.local_model import chosen_policy, recipe_of_run, trained_policy

_ADAPTER = "-adapter"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def stage_base(recipe: Recipe, model_dir: Path, run: Path, stage: Stage) -> Path:
    """The directory whose weights a stage's learner is made of.

    It is the untrained model, which a training state then brings up to date; but where one of SFT and RL trains
    adapters and the other all weights, RL begins with what SFT exported, its adapters merged.
    """
    ranks = [recipe.model.rank_in(each) for each in ("sft", "rl")]
    is_other = stage == "rl" and recipe.has_sft and ranks[0] != ranks[1]
    return run / "checkpoints" / "sft" if is_other else model_dir


def export_stage(learner: Learner, recipe: Recipe, stage: Stage, model_dir: Path, base: Path, out: Path) -> None:
    """Write what a run keeps of a policy: the merged directory and, beside it, the adapter when there is one.

    `base` is the directory that the learner was made of; `out`, of the merged weights, is replaced if it exists.
    """
    checkpoint = new_checkpoint(recipe)
    if recipe.model.rank_in(stage):
        adapter = out.with_name(out.name + _ADAPTER)
        checkpoint.export_adapter(learner, adapter, base=base, base_name=_base_name(recipe, model_dir, base))
    checkpoint.export(learner, out, base=base)


def _base_name(recipe: Recipe, model_dir: Path, base: Path) -> str:
    """What loaders are told to put adapters on."""
    spec = recipe.model.spec
    is_hub_id = base == model_dir and _HUB_ID.fullmatch(spec) is not None and not Path(spec).exists()
    return spec if is_hub_id else str(base.resolve())


def copy_policy(source: Path, out: Path) -> None:
    """Write what `export_stage` wrote under another name too, atomically; where the disk can, without its bytes."""
    for suffix in (_ADAPTER, ""):
        folder = source.with_name(source.name + suffix)
        if folder.is_dir():
            with replacing(out.with_name(out.name + suffix)) as building:
                shutil.copytree(folder, building, copy_function=link_or_copy)


def export_run(run: Path, out: Path, *, policy: str = "", is_adapter: bool = False) -> str:
    """Export a policy of a run, finished or not, into a folder that must not exist, with a model card beside it.

    Args:
        run: a run folder.
        out: the directory to write.
        policy: a name in the run's `checkpoints`: best, rl, sft, or a training state such as state-rl-20. Empty: the
            best, and where none is chosen yet the newest training state, else rl, else sft.
        is_adapter: the adapter alone instead of the merged weights.

    Returns:
        What was exported, in words.

    Raises:
        ConfigError: no such run, policy or adapter, or `out` exists.
    """
    recipe = recipe_of_run(run)
    if out.exists():
        raise ConfigError(f"{out} exists already; name a folder that does not")
    source, words = _choose(run, policy)
    if source.name.startswith("state-"):
        stage: Stage = "sft" if source.name.startswith("state-sft-") else "rl"
        model_dir = resolve_model(recipe.model.spec)
        base = stage_base(recipe, model_dir, run, stage)
        learner, checkpoint = new_learner(recipe, base, stage), new_checkpoint(recipe)
        checkpoint.load(learner, source)
        if is_adapter:
            checkpoint.export_adapter(learner, out, base=base, base_name=_base_name(recipe, model_dir, base))
        else:
            checkpoint.export(learner, out, base=base)
    else:
        chosen = source.with_name(source.name + _ADAPTER) if is_adapter else source
        if not chosen.is_dir():
            raise ConfigError(
                f"{source} has no adapter beside it: that stage trained all weights (model.lora_rank, lora_stages)"
            )
        with replacing(out) as building:
            shutil.copytree(chosen, building)
    write_card(out, run, recipe, words, is_adapter=is_adapter)
    return words


def package_run(
    run: Path,
    *,
    out: Path | None = None,
    gguf: Path | None = None,
    bits: Bits = 16,
    push: str = "",
    is_private: bool = False,
    policy: str = "",
    is_adapter: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> None:
    """Export a policy to one or more places: a folder, a GGUF file, a hub (`push`: owner/name); see `export_run`.

    Raises:
        ConfigError: nothing to write is named, something cannot be had together, or what `export_run` raises.
        ModelError: the policy cannot be written as GGUF.
        ServerError: the hub cannot be reached, or refuses.
    """
    if not (out or gguf or push):
        raise ConfigError("nothing to write is named; give --out FOLDER, --gguf FILE, --push OWNER/NAME or several")
    if gguf and is_adapter:
        raise ConfigError("a GGUF file holds merged weights; leave out --adapter, or --gguf")
    if gguf and gguf.exists():
        raise ConfigError(f"{gguf} exists already; name a file that does not")
    spec = recipe_of_run(run).model.spec
    if push and is_adapter and (_HUB_ID.fullmatch(spec) is None or Path(spec).exists()):
        raise ConfigError(
            f"the adapter is one for {spec}, which others cannot load by that name; push merged weights (leave out "
            "--adapter), or train on a model of the hub"
        )
    with tempfile.TemporaryDirectory(prefix="seekling-export-") as scratch:
        folder = out or Path(scratch) / "policy"
        words = export_run(run, folder, policy=policy, is_adapter=is_adapter)
        what = f"{words}{' (adapter)' if is_adapter else ''} of {run}"
        if out:
            log(f"wrote {what} to {out}")
        if gguf:
            kind = write_gguf(folder, gguf, bits=bits, name=recipe_of_run(run).name)
            log(f"wrote {what} to {gguf} ({kind}, {gguf.stat().st_size / 1e6:.0f} MB)")
        if push:
            address = push_folder(folder, push, more=[gguf] if gguf else [], is_private=is_private)
            log(f"pushed {what} to {address}")


def _choose(run: Path, policy: str) -> tuple[Path, str]:
    folders = [path for path in (run / "checkpoints").glob("[!.]*") if path.is_dir()]
    folders = [path for path in folders if not path.name.endswith(_ADAPTER)]
    found = {path.name: path for path in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)}
    if policy and policy not in found:
        raise ConfigError(f"{run} has no policy {policy!r}; it has {', '.join(found) or 'none yet'}")
    states = [name for name in found if name.startswith("state-")]
    if policy not in states and (policy or not states or chosen_policy(run)):
        return trained_policy(run, policy)
    return found[policy or states[0]], policy or states[0]
