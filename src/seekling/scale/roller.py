"""Groups of episodes over the samplers of a pool: each sampler is given the next group when it has room.

A group is whole or not used. One that went to a sampler that died goes to another, one that takes too long goes to
another too, and the first to come back counts. Which sampler made a group plays no part in what is in it: draws depend
on seed and position alone.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import ray

from seekling.env.environment import SearchEnv
from seekling.rollout.loop import Decoding, Roller, first_numbers
from seekling.rollout.render import Renderer
from seekling.scale.actor import Job, Outcome
from seekling.scale.pool import GET_S, Member, SamplerPool, failure_of, first_line
from seekling.types import EpisodeGroup, Question

LOOK_S = 1.0
"""Between two looks at who is late."""
HANGS_AFTER = 2
"""A sampler that has groups and has finished none for so many deadlines is taken for one that hangs."""


class PoolRoller(Roller):
    """A `Roller` whose episodes are made by a pool.

    Args:
        env: what the agent may do; each sampler has its own, under the same settings.
        pool: the samplers.
        renderer: messages to tokens.
        trains: its episodes are those of an RL step, whose number is the weights' version plus 1.
    """

    def __init__(self, env: SearchEnv, pool: SamplerPool, renderer: Renderer, *, trains: bool = True) -> None:
        super().__init__(env, pool, renderer)
        self._pool, self._trains = pool, trains
        self._statistics: Mapping[str, float] = {}

    def over(self, env: SearchEnv) -> Roller:
        """See `Roller.over`; evaluations are what other environments are for."""
        return PoolRoller(env, self._pool, self._renderer, trains=False)

    @property
    def statistics(self) -> Mapping[str, float]:
        """See `Roller.statistics`."""
        return self._statistics

    def rollout(
        self,
        questions: Sequence[Question],
        decoding: Decoding,
        *,
        group_size: int = 1,
        seed: int = 0,
        on_group: Callable[[EpisodeGroup], None] = lambda group: None,
    ) -> list[EpisodeGroup]:
        """See `Roller.rollout`.

        Raises:
            InfrastructureError: a sampler failed, or dies again and again.
        """
        pool = self._pool
        jobs = [
            Job(question, decoding, self._env.config, group_size, seed, first, pool.weights)
            for question, first in zip(questions, first_numbers(questions, group_size), strict=True)
        ]
        rollout = _Rollout(pool, jobs, step=pool.policy_version + 1 if self._trains else 0)
        if rollout.step:
            pool.ledger.rewind(rollout.step)
        try:
            while not rollout.is_done:
                for group in rollout.go_on():
                    on_group(group)
        finally:
            rollout.end()
        self._statistics = rollout.statistics()
        return [rollout.made[position] for position in range(len(jobs))]


@dataclass(frozen=True, slots=True)
class _Handed:
    """A group that is out."""

    attempt: int
    """Its number in the ledger."""
    position: int
    member: Member
    since: float


@dataclass(slots=True)
class _Work:
    """What a sampler did in a rollout."""

    num_tokens: int = 0
    busy_s: float = 0.0
    since: float | None = None
    """When it was last given something while it had nothing."""


@dataclass(slots=True)
class _Rollout:
    """One rollout, from its first group to its last."""

    pool: SamplerPool
    jobs: Sequence[Job]
    step: int
    made: dict[int, EpisodeGroup] = field(default_factory=dict)
    _todo: deque[int] = field(init=False)
    _out: dict[ray.ObjectRef, _Handed] = field(default_factory=dict)
    _work: dict[int, _Work] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _load_s: float = 0.0
    _queue_s: float = 0.0
    """Groups that waited for a sampler, times seconds."""
    _started: float = field(default_factory=time.monotonic)
    _deaths_before: int = field(init=False)

    def __post_init__(self) -> None:
        self._todo = deque(range(len(self.jobs)))
        self._deaths_before = self.pool.num_deaths

    @property
    def is_done(self) -> bool:
        """Whether every group is there."""
        return len(self.made) == len(self.jobs)

    def go_on(self) -> list[EpisodeGroup]:
        """Hand out what there is room for, and wait for what comes back; the groups that did."""
        self.pool.welcome()
        self._hand_out()
        self._look_for_late_ones()
        waiting, before = len(self._todo), time.monotonic()
        done, _ = ray.wait([*self._out, *self.pool.opening], timeout=LOOK_S)
        self._queue_s += waiting * (time.monotonic() - before)
        handed = [(ref, self._out.pop(ref)) for ref in done if ref in self._out]
        return [group for ref, each in handed if (group := self._take(ref, each)) is not None]

    def end(self) -> None:
        """Give up what is still out: its groups are there already, or the rollout was given up."""
        for each in self._out.values():
            self._drop(each, "another was first" if each.position in self.made else "the rollout was given up")
        if self._out:
            self.pool.release_caches()
        self._out.clear()

    def statistics(self) -> dict[str, float]:
        """For the step's metrics."""
        seconds = time.monotonic() - self._started
        work = [self._work.get(number, _Work()) for number in range(len(self.pool.members))]
        oldest = min((version for group in self.made.values() for version in _versions(group)), default=self.step - 1)
        return {
            **{f"sampler_{number}_tokens_per_s": each.num_tokens / seconds for number, each in enumerate(work)},
            "samplers_idle_share": 1 - sum(each.busy_s for each in work) / (seconds * len(work)),
            "queue_depth": self._queue_s / seconds,
            "staleness": float(max(self.step - 1 - oldest, 0)),
            "weights_write_s": self.pool.sync_s,
            "weights_read_s": self._load_s,
            "num_redispatched_groups": self._counts["again"],
            "num_sampler_deaths": self.pool.num_deaths - self._deaths_before,
        }

    def _hand_out(self) -> None:
        while self._todo:
            member = min(self._with_room(), key=lambda each: each.num_running, default=None)
            if member is None:
                return
            position = self._todo.popleft()
            if position not in self.made:
                self._hand(position, member)

    def _with_room(self) -> list[Member]:
        return [member for member in self.pool.ready if member.num_running < self._room_of(member)]

    def _room_of(self, member: Member) -> int:
        """Groups that fill a sampler's slots; one more than that would only be kept from the others."""
        assert member.opened is not None
        return max(1, -(-member.opened.num_slots // self.jobs[0].group_size))

    def _hand(self, position: int, member: Member) -> None:
        job, now = self.jobs[position], time.monotonic()
        attempt = self.pool.ledger.dispatch(self.step, position, sampler=member.number, weights=job.weights.number)
        self._out[member.handle.roll.remote(job)] = _Handed(attempt, position, member, now)
        if not member.num_running:
            member.heard = now
            self._work.setdefault(member.number, _Work()).since = now
        member.num_running += 1

    def _take(self, ref: ray.ObjectRef, handed: _Handed) -> EpisodeGroup | None:
        """What came back of a group, if it is the first and whole."""
        member, position = handed.member, handed.position
        try:
            outcome: Outcome = ray.get(ref, timeout=GET_S)
        except ray.exceptions.RayTaskError as error:
            self._drop(handed, "the sampler failed")
            raise failure_of(member, error) from None
        except ray.exceptions.RayError as error:
            self._lose(member, handed, first_line(error))
            return None
        member.heard, member.num_deaths = time.monotonic(), 0
        self._load_s = max(self._load_s, outcome.load_s)
        group, ledger = outcome.group, self.pool.ledger
        if group is None:
            self._drop(handed, "the sampler gave it up")
            self._again(position)
            return None
        assert outcome.weights == self.jobs[position].weights, "a sampler answered for other weights"
        ledger.take_back(handed.attempt, episodes=len(group.episodes) + len(group.failed))
        if position in self.made:
            self._drop(handed, "another was first")
            return None
        self._finish(handed)
        self.made[position] = group
        self._work[member.number].num_tokens += sum(len(each.token_ids_T) for each in group.trajectories)
        ledger.use(handed.attempt, self.step)
        return group

    def _lose(self, member: Member, handed: _Handed, why: str) -> None:
        """A sampler is gone: with it all that it had."""
        lost = [handed, *(each for each in self._out.values() if each.member is member)]
        self._out = {ref: each for ref, each in self._out.items() if each.member is not member}
        if self.pool.members[member.number] is member:
            self.pool.replace(member, why)
        for each in lost:
            self._drop(each, "the sampler died")
            self._again(each.position)

    def _look_for_late_ones(self) -> None:
        """Give groups that are past their deadline to others too, and end samplers that hang."""
        now, limit_s = time.monotonic(), self.pool.config.straggler_s
        for member in list(self.pool.ready):
            mine = [each for each in self._out.values() if each.member is member]
            if mine and now - member.heard > HANGS_AFTER * limit_s:
                why = f"it had groups and finished none for {now - member.heard:.0f} s (scale.straggler_s)"
                self._out = {ref: each for ref, each in self._out.items() if each is not mine[0]}
                self._lose(member, mine[0], why)
        newest = {each.position: each for each in sorted(self._out.values(), key=lambda each: each.since)}
        for position, each in newest.items():
            if now - each.since <= limit_s or position in self.made:
                continue
            have = {other.member.number for other in self._out.values() if other.position == position}
            others = [member for member in self._with_room() if member.number not in have]
            if others:
                member = min(others, key=lambda other: other.num_running)
                late_s = now - each.since
                self.pool.log(f"group {position}: {each.member} is late ({late_s:.0f} s); {member} makes it too")
                self._counts["again"] += 1
                self._hand(position, member)

    def _again(self, position: int) -> None:
        """Put a group that was lost first in the queue, unless it is there or on its way from another."""
        if position not in self.made and all(each.position != position for each in self._out.values()):
            self._counts["again"] += 1
            self._todo.appendleft(position)

    def _drop(self, handed: _Handed, why: str) -> None:
        self.pool.ledger.drop(handed.attempt, why)
        self._finish(handed)

    def _finish(self, handed: _Handed) -> None:
        member, work = handed.member, self._work[handed.member.number]
        member.num_running -= 1
        if not member.num_running and work.since is not None:
            work.busy_s += time.monotonic() - work.since
            work.since = None


def _versions(group: EpisodeGroup) -> list[int]:
    return [version for each in group.trajectories for version in each.policy_versions]
