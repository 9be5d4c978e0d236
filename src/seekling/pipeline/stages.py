"""The stages of a run: collect -> eval base -> SFT -> eval -> RL -> eval -> report, each resumable."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import safetensors.torch

from seekling.config import Recipe
from seekling.evaluate.files import write_comparisons
from seekling.evaluate.summary import EvalSummary
from seekling.experts.collect import collect
from seekling.learn.learner import Learner
from seekling.learn.rl import RlRun, train
from seekling.learn.sft import num_sft_steps, train_sft
from seekling.models import load_policy, resolve_model
from seekling.pipeline.evaluate import evaluate_policy, read_summary_of
from seekling.pipeline.progress import Reporter
from seekling.pipeline.record import describe_run
from seekling.pipeline.run_folder import RunFolder
from seekling.pipeline.world import World, open_world
from seekling.report.page import write_report
from seekling.reward.functions import make_reward
from seekling.rollout.replay import expert_trajectory
from seekling.serve.agent import Agent, open_agent, training_decoding
from seekling.types import EpisodeRecord, Trajectory

SAVE_EVERY_S = 300.0
"""Seconds of training that a crash may cost."""
BASE_VERSION = -1
"""Policy version of the untrained model."""


def run_recipe(recipe: Recipe, path: Path, reporter: Reporter) -> list[EvalSummary]:
    """Run a recipe to its end, or from where an earlier process stopped.

    Args:
        recipe: what to do.
        path: the run folder.
        reporter: for progress.

    Returns:
        The evaluations, in the order base, sft, rl.

    Raises:
        SeeklingError: whatever a stage raises; the folder keeps what is done, and the same call goes on from there.
        KeyboardInterrupt: after the training state was saved.
    """
    folder = RunFolder(path, recipe)
    started = time.perf_counter()
    world = open_world(recipe, path, reporter)
    model_dir = resolve_model(recipe.model.spec, log=reporter.line)
    with open_agent(recipe, world.library, model_dir) as agent:
        run = _Run(recipe, folder, world, agent, model_dir, reporter)
        folder.write_record(describe_run(recipe, folder, world, agent, model_dir))
        folder.add_seconds("setup", time.perf_counter() - started)
        summaries = run.all_stages()
        folder.write_record(describe_run(recipe, folder, world, agent, model_dir))
    write_comparisons(path)
    write_report([path], path / "report.html")
    folder.drop_state()
    return summaries


@dataclass(slots=True)
class _Run:
    recipe: Recipe
    folder: RunFolder
    world: World
    agent: Agent
    model_dir: Path
    reporter: Reporter
    _learner: Learner | None = None

    def all_stages(self) -> list[EvalSummary]:
        recipe = self.recipe
        has_sft, has_rl = recipe.experts.num_questions > 0, recipe.rl.steps > 0
        if has_sft:
            self._once("expert", self._collect)
            self.agent.sampler.teach_drafts(self._expert_trajectories())
        if "base" in recipe.eval.stages:
            self._once("eval-base", lambda: self._evaluate("base"))
        if has_sft:
            self._once("sft", self._sft)
            if "sft" in recipe.eval.stages:
                self._once("eval-sft", lambda: self._evaluate("sft"))
        if has_rl:
            self._once("rl", self._rl)
            if "rl" in recipe.eval.stages:
                self._once("eval-rl", lambda: self._evaluate("rl"))
        done = [name for name in recipe.eval.stages if self.folder.is_done(f"eval-{name}")]
        return [read_summary_of(recipe, self.folder, name) for name in done]

    def _once(self, stage: str, work: Callable[[], None]) -> None:
        if self.folder.is_done(stage):
            return
        started = time.perf_counter()
        try:
            work()
        finally:
            self.folder.add_seconds(stage, time.perf_counter() - started)
        self.folder.finish(stage)

    def _collect(self) -> None:
        config = self.recipe.experts
        questions = self.world.train[: config.num_questions]
        with self.reporter.track("expert episodes", len(questions)) as advance:
            records, report = collect(
                self.agent.env, questions, max_episodes=config.max_episodes, on_question=lambda: advance("")
            )
        self.folder.replace_records("expert", records)
        self.reporter.line(str(report))

    def _sft(self) -> None:
        recipe, learner = self.recipe, self.learner("sft")
        trajectories = self._expert_trajectories()
        total = num_sft_steps(recipe.sft, len(trajectories))
        with self._training("sft", total, learner) as after_step:
            train_sft(
                learner,
                trajectories,
                recipe.sft,
                seed=recipe.seed,
                on_step=lambda step, metrics: after_step(step, metrics, f"loss {metrics['loss']:.3f}"),
            )
        self._export("sft", learner)

    def _expert_trajectories(self) -> list[Trajectory]:
        protocol, renderer = self.agent.env.protocol, self.agent.renderer
        return [expert_trajectory(each.episode, protocol, renderer) for each in self.folder.read_records("expert")]

    def _rl(self) -> None:
        recipe, learner = self.recipe, self.learner("rl")
        saved = self.folder.saved
        first_step = saved[1] if saved is not None and saved[0] == "rl" else 0
        run = RlRun(self.world.train, recipe.rl, seed=recipe.seed)
        with self._training("rl", recipe.rl.steps, learner) as after_step:

            def on_step(step: int, metrics: Mapping[str, float], records: list[EpisodeRecord]) -> None:
                self.folder.append_records(records)
                note = f"reward {metrics.get('reward_mean', 0.0):.2f}, searches {metrics.get('searches_mean', 0.0):.1f}"
                after_step(step, metrics, note)

            train(
                learner,
                self.agent.sampler,
                self.agent.roller,
                run,
                decoding=training_decoding(recipe),
                reward=make_reward(recipe.rl.reward),
                on_step=on_step,
                first_step=first_step,
            )
        self._export("rl", learner)

    @contextmanager
    def _training(
        self, stage: str, total: int, learner: Learner
    ) -> Iterator[Callable[[int, Mapping[str, float], str], None]]:
        """Log, save now and then, and stop cleanly on the first Ctrl-C: the step ends, the state is saved."""
        folder, last_save = self.folder, time.monotonic()
        done = folder.saved[1] if folder.saved is not None and folder.saved[0] == stage else 0
        folder.rewind(stage, done)
        with _deferred_interrupt(self.reporter) as is_interrupted, self.reporter.track(stage, total, done=done) as bar:

            def after_step(step: int, metrics: Mapping[str, float], note: str) -> None:
                nonlocal last_save
                folder.log_metrics(stage, step, metrics)
                bar(note)
                if is_interrupted() or time.monotonic() - last_save > SAVE_EVERY_S:
                    folder.save_state(stage, step, learner.save)
                    last_save = time.monotonic()
                if is_interrupted():
                    raise KeyboardInterrupt

            yield after_step
        folder.save_state(stage, total, learner.save)

    def learner(self, stage: str) -> Learner:
        """The learner at the beginning of a stage, or where an earlier process left it."""
        recipe, saved = self.recipe, self.folder.saved
        settings = recipe.sft if stage == "sft" else recipe.rl
        is_new = self._learner is None
        if self._learner is None:
            model, _ = load_policy(self.model_dir, dtype=recipe.model.dtype)
            self._learner = Learner(
                model,
                lora_rank=recipe.model.lora_rank,
                lora_alpha=recipe.model.lora_alpha,
                weight_decay=recipe.sft.weight_decay,
                row_tokens=settings.row_tokens,
                max_grad_norm=settings.max_grad_norm,
            )
        if is_new and saved is not None:
            self._learner.load(saved[2])
        if stage == "rl" and recipe.rl.kl_coefficient > 0:
            self._keep_reference(self._learner, saved)
        if saved is None or saved[0] != stage:
            self._learner.start_stage(max_grad_norm=settings.max_grad_norm, row_tokens=settings.row_tokens)
        return self._learner

    def _keep_reference(self, learner: Learner, saved: tuple[str, int, Path] | None) -> None:
        """The KL anchor is the policy before RL; a run resumed inside RL finds it in the exported SFT model."""
        sft = self.folder.path / "checkpoints" / "sft"
        if saved is not None and saved[0] == "rl":
            model, _ = load_policy(sft if sft.exists() else self.model_dir, dtype=self.recipe.model.dtype)
            learner.keep_reference(model)
        else:
            learner.keep_reference()

    def _export(self, name: str, learner: Learner) -> None:
        export_policy(learner, self.agent, self.model_dir, self.folder.path / "checkpoints" / name)

    def _evaluate(self, name: str) -> None:
        sampler = self.agent.sampler
        if name == "base":
            base, _ = load_policy(self.model_dir, dtype=self.recipe.model.dtype)
            sampler.load_weights(dict(base.named_parameters()), version=BASE_VERSION)
        else:
            learner = self._learner or self.learner(name)
            sampler.load_weights(learner.export_weights(), version=learner.num_steps)
        evaluate_policy(self.recipe, self.folder, self.agent, self.world.test, name, self.reporter)
        sampler.release_caches()


def export_policy(learner: Learner, agent: Agent, model_dir: Path, out: Path) -> None:
    """Write the policy as a plain Hugging Face directory, adapters merged, atomically.

    Args:
        learner: has the weights.
        agent: has the tokenizer.
        model_dir: where the model came from; its configuration is copied.
        out: the directory; replaced if it exists.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        for name in ("config.json", "generation_config.json"):
            if (model_dir / name).exists():
                shutil.copy(model_dir / name, building / name)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in learner.export_weights().items()}
        safetensors.torch.save_file(weights, building / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((building / "config.json").read_text(encoding="utf-8"))
        config["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
        (building / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        agent.tokenizer.save_pretrained(str(building))
        building.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        building.rename(out)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


@contextmanager
def _deferred_interrupt(reporter: Reporter) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C is remembered, the second acts at once."""
    is_set = False
    before = signal.getsignal(signal.SIGINT)

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal is_set
        if is_set:
            raise KeyboardInterrupt
        is_set = True
        reporter.line("Ctrl-C: this step is finished and saved first; once more stops at once")

    try:
        signal.signal(signal.SIGINT, remember)
    except ValueError:  # not the main thread: whoever owns the signal keeps it
        yield lambda: False
        return
    try:
        yield lambda: is_set
    finally:
        signal.signal(signal.SIGINT, before)
