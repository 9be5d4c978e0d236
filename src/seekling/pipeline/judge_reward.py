"""`rl.reward.kind = "judge"`: episodes are judged while others are still being sampled.

A judge that fails is infrastructure, like a search server that does: its episode leaves the group, is counted, and is
never scored 0. So what learns meets judged episodes only.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from seekling.config import JudgeConfig
from seekling.evaluate.judging import Judge, Verdict, VerdictCache
from seekling.pipeline.reporter import Reporter
from seekling.reward.judge import Judgement, judged_reward
from seekling.reward.match import exact_match
from seekling.rollout.chat import ChatClient, ChatModel
from seekling.rollout.loop import Decoding, Roller
from seekling.serve.local_model import open_local_chat
from seekling.types import Episode, EpisodeGroup, Question, Reward, StopReason

_Pending = tuple[EpisodeGroup, list[Future[Verdict]]]


class JudgedRoller(Roller):
    """A roller whose groups come with verdicts; `in_flight` episodes are judged at once."""

    def __init__(self, roller: Roller, judge: Judge, *, in_flight: int) -> None:
        self._inner, self._judge, self._judging = roller, judge, in_flight
        self._verdicts: dict[tuple[tuple[str, str], int], Judgement] = {}
        self.notes: Counter[str] = Counter()
        """How verdicts came about, and why there was none, since it was made."""

    def __str__(self) -> str:
        return ", ".join(f"{count} {note}" for note, count in self.notes.most_common()) or "nothing to judge"

    def rollout(
        self,
        questions: Sequence[Question],
        decoding: Decoding,
        *,
        group_size: int = 1,
        seed: int = 0,
        on_group: Callable[[EpisodeGroup], None] = lambda group: None,
        coming: Sequence[tuple[Sequence[Question], int]] = (),
    ) -> list[EpisodeGroup]:
        """As `Roller.rollout`; episodes without a verdict are in `failed`. Groups are reported when they are judged."""
        pending: list[_Pending] = []
        made: dict[int, EpisodeGroup] = {}
        self._verdicts.clear()

        def hand_out(*, wait: bool) -> None:
            for number, (group, futures) in enumerate(pending):
                if number not in made and (wait or all(future.done() for future in futures)):
                    made[number] = self._with_verdicts(group, [future.result() for future in futures])
                    on_group(made[number])

        pool = ThreadPoolExecutor(max_workers=self._judging)
        try:

            def judge(group: EpisodeGroup) -> None:
                futures = [pool.submit(self._judge.judge_episode, group.question, each) for each in group.episodes]
                pending.append((group, futures))
                hand_out(wait=False)

            groups = self._inner.rollout(
                questions, decoding, group_size=group_size, seed=seed, on_group=judge, coming=coming
            )
            hand_out(wait=True)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        # By identity: at the seam of two epochs a step may hold a question twice.
        places = {id(group): number for number, (group, _) in enumerate(pending)}
        return [made[places[id(group)]] for group in groups]

    def reward(self, episode: Episode, question: Question) -> Reward:
        """The reward of an episode of the last rollout."""
        verdict = self._verdicts[question.key, episode.seed]
        return judged_reward(verdict, exact_match(episode.answer, question.answers))

    def _with_verdicts(self, group: EpisodeGroup, verdicts: list[Verdict]) -> EpisodeGroup:
        kept, failed = [], list(group.failed)
        for episode, trajectory, (verdict, note) in zip(group.episodes, group.trajectories, verdicts, strict=True):
            self.notes[note] += 1
            if verdict is None:
                failure = f"the judge gave no verdict: {note}"
                failed.append(replace(episode, stop_reason=StopReason.INFRA_FAILURE, failure=failure))
            else:
                self._verdicts[group.question.key, episode.seed] = verdict
                kept.append((episode, trajectory))
        return EpisodeGroup(
            group.question, tuple(episode for episode, _ in kept), tuple(each for _, each in kept), tuple(failed)
        )


@contextlib.contextmanager
def open_judge(config: JudgeConfig, run: Path, reporter: Reporter) -> Iterator[Judge]:
    """A judge; a local one's model is loaded, and given up at the end. The run folder keeps the verdicts."""
    cache = VerdictCache(Path(config.cache) if config.cache else run / "judge-cache.jsonl")
    opened: contextlib.AbstractContextManager[ChatModel] = (
        contextlib.nullcontext(ChatClient(config))
        if config.url
        else open_local_chat(config.model, in_flight=config.in_flight, log=reporter.line)
    )
    with opened as model:
        yield Judge(model, cache, num_tries=config.tries, in_flight=config.in_flight, max_tokens=config.max_tokens)
