"""The stages of a run: collect -> SFT -> RL -> choose the best policy -> eval -> report, each resumable.

The policy is chosen by the development questions: after SFT, after RL, and now and then in between. The test questions
are asked when nothing is left to choose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seekling.config import EVALUATIONS, Recipe
from seekling.doctor.memory import Stage
from seekling.evaluate.confidence import calibrate, read_calibration
from seekling.evaluate.result_files import read_summary, write_comparisons
from seekling.evaluate.summary import EvalSummary
from seekling.experts.select import collect
from seekling.kernels.memory import keep_freed_memory
from seekling.learn.learner import Learner
from seekling.learn.rl import RlRun, train
from seekling.learn.sft import num_sft_steps, train_sft
from seekling.models import resolve_model
from seekling.pipeline.asking import Extras, evaluate_policy
from seekling.pipeline.experts_file import (
    demonstrate,
    expert_trajectories,
    load_experts,
    plan_trajectories,
    questions_for_rl,
    split_for_sft,
)
from seekling.pipeline.export import copy_policy, export_stage, stage_base
from seekling.pipeline.guard import HealthGuard
from seekling.pipeline.implementations import new_checkpoint, new_sync, open_learner, open_sampling
from seekling.pipeline.judge_reward import JudgedRoller, open_judge
from seekling.pipeline.reporter import Reporter, deferred_interrupt
from seekling.pipeline.run_folder import Candidate, RunFolder, best_of
from seekling.pipeline.run_record import describe_run
from seekling.pipeline.trackers import LogMetrics, open_trackers
from seekling.pipeline.world import World, open_world
from seekling.report.page import write_report
from seekling.reward.functions import RewardFunction, make_reward
from seekling.rollout.loop import Roller
from seekling.serve.agent import Agent, training_decoding
from seekling.types import EpisodeRecord

BASE_VERSION = -1
"""Policy version of the untrained model."""


def run_recipe(recipe: Recipe, path: Path, reporter: Reporter) -> list[EvalSummary]:
    """Run a recipe to its end, or from where an earlier process stopped; gives the evaluations base, sft, rl.

    Raises:
        SeeklingError: whatever a stage raises; the folder keeps what is done, and the same call goes on from there.
        KeyboardInterrupt: after the training state was saved.
    """
    folder = RunFolder(path, recipe)
    started = time.perf_counter()
    if folder.num_damaged:
        reporter.line(f"warning: metrics.jsonl: {folder.num_damaged} damaged line(s) are passed over")
    keep_freed_memory()  # first: an encoder's matrix products come before the sampler's
    with ExitStack() as stack:
        stack.enter_context(folder.written_here_only())
        track = stack.enter_context(open_trackers(recipe, path))  # first: one that is missing is known at once
        world = open_world(recipe, path, reporter)
        model_dir = resolve_model(recipe.model.spec, log=reporter.line)
        agent = stack.enter_context(open_sampling(recipe, folder, world.library, model_dir, reporter.line))
        run = _Run(recipe, folder, world, agent, model_dir, reporter, track)
        folder.write_record(describe_run(recipe, folder, world, agent, model_dir))
        folder.add_seconds("setup", time.perf_counter() - started)
        summaries = run.all_stages()
        folder.write_record(describe_run(recipe, folder, world, agent, model_dir))
    write_comparisons(path)
    write_report([path], path / "report.html")
    folder.drop_states()
    return summaries


@dataclass(slots=True)
class _Run:
    recipe: Recipe
    folder: RunFolder
    world: World
    agent: Agent
    model_dir: Path
    reporter: Reporter
    track: LogMetrics
    _learner: Learner | None = None
    _base: Path | None = None
    """The directory that the learner was made of."""
    _aside_s: float = 0.0
    """Seconds of stages that ran inside another one."""

    def all_stages(self) -> list[EvalSummary]:
        recipe, folder = self.recipe, self.folder
        if recipe.has_sft:
            self._once("expert", self._collect)
            self.agent.sampler.teach_drafts(expert_trajectories(folder, self.agent))
            self._once("sft", self._sft)
            self._once("dev-sft", lambda: self._ask_dev("sft", 0))
        if recipe.rl.steps:
            self._once("rl", self._rl)
            self._once(f"dev-rl-{recipe.rl.steps}", lambda: self._ask_dev("rl", recipe.rl.steps))
        best, checkpoints = best_of(folder.progress.policies), folder.path / "checkpoints"
        if folder.progress.chosen is None and best is not None:
            copy_policy(checkpoints / best.stage, checkpoints / "best")
            folder.note(chosen=best)
            self.reporter.line(f"best policy: {best}; ask, serve, export and eval take it")
        self._close_learner()  # its memory is free for what is evaluated
        for name in recipe.evaluations:
            self._once(f"eval-{name}", partial(self._evaluate, name))
        return [read_summary(folder.path / "eval" / f"{name}.json") for name in recipe.evaluations]

    def _once(self, stage: str, work: Callable[[], bool | None]) -> None:
        """Do a stage that is not done; one that returns False has something left, which the same command does later."""
        if stage in self.folder.progress.done:
            return
        started, aside_s = time.perf_counter(), self._aside_s
        try:
            is_whole = work()
        finally:
            seconds = time.perf_counter() - started - (self._aside_s - aside_s)
            self._aside_s += seconds
            self.folder.add_seconds(stage, seconds)
        if is_whole is not False:
            self.folder.note(done=[*self.folder.progress.done, stage])

    def _collect(self) -> None:
        config = self.recipe.experts
        if config.file:
            load_experts(self.recipe, self.folder, self.world, self.agent, self.reporter)
            return
        questions = split_for_sft(config, self.world.train).played
        with self.reporter.track("expert episodes", len(questions)) as advance:
            selection = collect(
                self.agent.env,
                questions,
                config=config,
                title_of=self.world.library.title_of,
                on_question=lambda: advance(""),
            )
        self.folder.replace_records("expert", selection.kept)
        self.reporter.line(f"scripted expert: {selection}")

    def _sft(self) -> None:
        recipe, learner = self.recipe, self.learner("sft")
        trajectories = expert_trajectories(self.folder, self.agent)
        trajectories += plan_trajectories(recipe, self.world.train, self.agent)
        total = num_sft_steps(recipe.sft, len(trajectories))
        with self._training("sft", total, learner) as after_step:
            train_sft(
                learner,
                trajectories,
                recipe.sft,
                seed=recipe.seed,
                on_step=lambda step, metrics: after_step(
                    step, metrics, f"loss {metrics['loss']:.3f}" if "loss" in metrics else "no loss"
                ),
            )

    def _rl(self) -> None:
        recipe, learner, folder = self.recipe, self.learner("rl"), self.folder
        saved = folder.saved
        first_step = saved.step if saved is not None and saved.stage == "rl" else 0
        if self._is_dev_step("rl", first_step):
            self._once(f"dev-rl-{first_step}", lambda: self._ask_dev("rl", first_step))
        run = RlRun(questions_for_rl(recipe, self.world.train), recipe.rl, seed=recipe.seed)
        teacher = partial(demonstrate, recipe, self.agent) if recipe.rl.groups.demonstrations != "none" else None
        with (
            self._open_reward() as (roller, reward),
            self._training("rl", recipe.rl.steps, learner) as after_step,
        ):
            guard = HealthGuard(recipe, folder, run, self.reporter)
            if run.curriculum.is_on:
                run.curriculum.catch_up(first_step, folder.read_records("rl"))

            def on_step(step: int, metrics: Mapping[str, float], records: list[EpisodeRecord]) -> None:
                folder.append_records(records)
                metrics = {**metrics, **self.agent.roller.statistics}
                note = f"reward {metrics.get('reward_mean', 0.0):.2f}, searches {metrics.get('searches_mean', 0.0):.1f}"
                if "draft_acceptance" in metrics:
                    note += f", drafts {metrics['draft_acceptance']:.0%} right"
                after_step(step, guard.look(metrics, records), note)

            train(
                learner,
                self.agent.sampler,
                roller,
                run,
                sync=new_sync(recipe, self.agent),
                decoding=training_decoding(recipe),
                reward=reward,
                on_step=on_step,
                demonstrate=teacher,
                first_step=first_step,
            )

    @contextmanager
    def _open_reward(self) -> Iterator[tuple[Roller, RewardFunction]]:
        """Where episodes come from and what they are worth; with a judge both are its."""
        config, roller, judge_config = self.recipe.rl.reward, self.agent.roller, self.recipe.judge
        if config.kind != "judge":
            yield roller, make_reward(config.kind, config)
            return
        with open_judge(judge_config, self.folder.path, self.reporter) as judge:
            judged = JudgedRoller(roller, judge, in_flight=judge_config.in_flight)
            yield judged, judged.reward
            self.reporter.line(f"judge: {judged}")

    @contextmanager
    def _training(
        self, stage: str, total: int, learner: Learner
    ) -> Iterator[Callable[[int, Mapping[str, float], str], None]]:
        """Log, save and ask dev now and then; stop cleanly on the first Ctrl-C: the step ends, the state is saved."""
        folder, config, last_save = self.folder, self.recipe.checkpoint, time.monotonic()
        done = folder.saved.step if folder.saved is not None and folder.saved.stage == stage else 0
        folder.rewind(stage, done)
        with deferred_interrupt(self.reporter) as is_interrupted, self.reporter.track(stage, total, done=done) as bar:

            def after_step(step: int, metrics: Mapping[str, float], note: str) -> None:
                nonlocal last_save
                folder.log_metrics(stage, step, metrics)
                self.track(stage, step, metrics)
                bar(note)
                if metrics.get("num_skipped_steps"):
                    self.reporter.line(f"warning: {stage} step {step}: a gradient was not finite; update skipped")
                is_due = time.monotonic() - last_save > config.every_s
                is_due |= bool(config.every_steps) and step % config.every_steps == 0
                is_dev = self._is_dev_step(stage, step)
                if is_due or is_dev or is_interrupted():
                    self._save(stage, step, learner)
                    last_save = time.monotonic()
                if is_dev and not is_interrupted():
                    self._once(f"dev-rl-{step}", lambda: self._ask_dev("rl", step))
                if is_interrupted():
                    raise KeyboardInterrupt

            yield after_step
        self._save(stage, total, learner)

    def _save(self, stage: str, step: int, learner: Learner) -> None:
        save = partial(new_checkpoint(self.recipe).save, learner)
        self.folder.save_state(stage, step, save, keep_last=self.recipe.checkpoint.keep_last)

    def learner(self, stage: Stage) -> Learner:
        """The learner at the beginning of a stage, or where an earlier process left it."""
        recipe, saved = self.recipe, self.folder.saved
        settings = recipe.sft if stage == "sft" else recipe.rl
        optimizer = recipe.sft if stage == "sft" else recipe.rl.optimizer
        base = stage_base(recipe, self.model_dir, self.folder.path, stage)
        if base != self._base:
            self._close_learner()
            self._base = base
        is_new = self._learner is None
        learner = self._learner = self._learner or open_learner(
            recipe, base, stage, run=self.folder.path, log=self.reporter.line
        )
        add_critic = partial(learner.add_critic, recipe.rl, lora_rank=recipe.model.rank_in("rl"))
        has_critic = stage == "rl" and recipe.rl.has_critic
        if is_new and saved is not None and (base == self.model_dir or saved.stage == stage):
            if has_critic and saved.stage == "rl":
                # The state has what it trains: all weights, or adapters, which need what they were put on.
                add_critic(begins_at=self._before_rl() if recipe.model.rank_in("rl") > 0 else None)
            new_checkpoint(self.recipe).load(learner, saved.path)
        if has_critic and learner.critic is None:
            add_critic()
        if stage == "rl" and recipe.rl.loss.kl_coefficient > 0:
            # The KL anchor is the policy before RL; a run resumed inside RL finds it in its state or in the SFT model.
            if saved is None or saved.stage != "rl":
                learner.keep_reference()
            elif not learner.has_reference:
                learner.keep_reference(self._before_rl())
        if saved is None or saved.stage != stage:
            learner.start_stage(
                row_tokens=settings.row_tokens,
                max_grad_norm=optimizer.max_grad_norm,
                betas=recipe.rl.optimizer.betas if stage == "rl" else None,
                weight_decay=optimizer.weight_decay,
                keep_moments=stage == "rl" and recipe.rl.optimizer.keep_moments,
            )
        return learner

    def _close_learner(self) -> None:
        if self._learner is not None:
            self._learner.close()
        self._learner = None

    def _before_rl(self) -> Path:
        """The directory of the policy that RL began with."""
        sft = self.folder.path / "checkpoints" / "sft"
        return sft if sft.is_dir() else self.model_dir

    def _is_dev_step(self, stage: str, step: int) -> bool:
        """Whether RL asks the development questions after this step; after its last one they are asked anyway."""
        every, total = self.recipe.eval.every_steps, self.recipe.rl.steps
        return bool(stage == "rl" and every and self.world.dev and 0 < step < total and step % every == 0)

    def _ask_dev(self, stage: Stage, step: int) -> None:
        """Ask the policy as it stands the development questions; export it unless an earlier of its stage is better.

        What failed for reasons of infrastructure is asked again at once: later there is another policy.
        """
        folder, candidate = self.folder, Candidate(stage, step, 0, 0)
        if self._learner is None and (folder.saved is None or folder.saved.stage != stage):
            return  # an older version finished this stage: its policy is exported, and its state is gone
        learner, name = self._learner or self.learner(stage), "dev-sft" if stage == "sft" else f"dev-rl-{step}"
        if self.world.dev:
            new_sync(self.recipe, self.agent).publish(learner, self.agent.sampler, version=learner.num_steps)
            for _ in range(2):
                summary = evaluate_policy(self.recipe, folder, self.agent, self.world.dev, name, self.reporter)
                if not summary.exclusions:
                    break
            for cause, count in summary.exclusions.items():
                self.reporter.line(f"warning: {name}: {count} x {cause}, left out of what the best policy is chosen by")
            self.agent.sampler.release_caches()
            candidate = Candidate(stage, step, summary.em.k, summary.em.n)
            folder.rewind("dev", step - 1)
            if summary.em.value is not None:
                metrics = {"em": summary.em.value, "answered_rate": summary.answered.value or 0.0}
                folder.log_metrics("dev", step, metrics)
                self.track("dev", step, metrics)
        mine = [each for each in folder.progress.policies if each.stage == stage and each.step != step]
        if best_of([*mine, candidate]) == candidate:
            base, out = self._base or self.model_dir, folder.path / "checkpoints" / stage
            export_stage(learner, self.recipe, stage, self.model_dir, base, out)
            records = folder.read_records(name) if self.world.dev else []
            calibration = calibrate(records, promised_precision=self.recipe.eval.promised_precision)
            if calibration is not None:
                calibration.save(out)
        folder.add_policy(candidate)

    def _evaluate(self, name: str) -> bool:
        """Ask an exported policy the test questions; says whether none failed for reasons of infrastructure."""
        number, sampler = EVALUATIONS.index(name), self.agent.sampler
        path = self.model_dir if name == "base" else self.folder.path / "checkpoints" / name
        new_sync(self.recipe, self.agent).publish_exported(path, sampler, version=BASE_VERSION + number)
        config = self.recipe.judge if self.recipe.eval.judge else None
        with open_judge(config, self.folder.path, self.reporter) if config else nullcontext() as judge:
            extras = Extras(judge, calibration=read_calibration(path))
            summary = evaluate_policy(
                self.recipe, self.folder, self.agent, self.world.test, f"eval-{name}", self.reporter, extras
            )
        if summary.em.value is not None:
            self.track("eval", number, {"em": summary.em.value})
        sampler.release_caches()
        for cause, count in summary.exclusions.items():
            self.reporter.line(f"eval-{name}: {count} x {cause}, asked again when the same command is given again")
        return not summary.exclusions
