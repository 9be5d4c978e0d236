"""Groups of episodes over the samplers of a pool: each sampler is given the next group when it has room.

A group is whole or not used. One that went to a sampler that died goes to another, one that takes too long goes to
another too, and the first to come back counts. Which sampler made a group plays no part in what is in it: draws depend
on seed and position alone.
"""

from __future__ import annotations

import copy
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import ray

from seekling.env.environment import SearchEnv
from seekling.rollout.loop import Decoding, Roller, first_numbers
from seekling.rollout.render import Renderer
from seekling.scale.actor import Job, Outcome
from seekling.scale.cluster import first_line
from seekling.scale.pool import GET_S, Member, SamplerPool, failure_of
from seekling.types import EpisodeGroup, Question

LOOK_S = 1.0
"""Between two looks at who is late."""
HANGS_AFTER = 2
"""A sampler that has groups and has finished none for so many deadlines is taken for one that hangs."""


class PoolRoller(Roller):
    """A `Roller` whose episodes are made by a pool, whose samplers have environments like `env`.

    Where it `trains`, these are of an RL step, whose number is the weights' version plus 1.
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
        """See `Roller.rollout`; raises InfrastructureError when a sampler fails, or dies again and again."""
        pool = self._pool
        jobs = [
            Job(question, decoding, self._env.config, group_size, seed, first, pool.weights)
            for question, first in zip(questions, first_numbers(questions, group_size), strict=True)
        ]
        step = pool.policy_version + 1 if self._trains else 0
        rollout = _Rollout(pool, jobs, step, pool.num_deaths, deque(range(len(jobs))))
        if step:
            pool.ledger.rewind(step)
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
class _Rollout:
    """One rollout, from its first group to its last."""

    pool: SamplerPool
    jobs: Sequence[Job]
    step: int
    _deaths_before: int
    _todo: deque[int]
    made: dict[int, EpisodeGroup] = field(default_factory=dict)
    _out: dict[ray.ObjectRef, _Handed] = field(default_factory=dict)
    _tokens: Counter[int] = field(default_factory=Counter)
    """By sampler."""
    _busy_s: float = 0.0
    """Samplers that had something to do, times seconds."""
    _num_again: int = 0
    _load_s: float = 0.0
    _queue_s: float = 0.0
    """Groups that waited for a sampler, times seconds."""
    _started: float = field(default_factory=time.monotonic)

    @property
    def is_done(self) -> bool:
        """Whether every group is there."""
        return len(self.made) == len(self.jobs)

    def go_on(self) -> list[EpisodeGroup]:
        """Hand out what there is room for, and wait for what comes back; the groups that did."""
        self.pool.welcome()
        self._hand_out()
        busy, before = {each.member.number: each.member for each in self._out.values()}, time.monotonic()
        ray.wait([*self._out, *self.pool.opening], timeout=LOOK_S)
        waited_s = time.monotonic() - before
        self._queue_s += len(self._todo) * waited_s
        self._busy_s += len(busy) * waited_s
        for member in busy.values():
            member.quiet_s += waited_s
        done = ray.wait(list(self._out), num_returns=len(self._out), timeout=0)[0] if self._out else ()
        # What is no longer out was lost with its sampler, a moment before.
        groups = [self._take(ref, self._out.pop(ref)) for ref in done if ref in self._out]
        self._look_for_late_ones()
        return [group for group in groups if group is not None]

    def end(self) -> None:
        """Give up what is still out: its groups are there already, or the rollout was given up."""
        for each in self._out.values():
            self._drop(each, "another was first" if each.position in self.made else "the rollout was given up")
        if self._out:
            self.pool.release_caches()
        self._out.clear()

    def statistics(self) -> dict[str, float]:
        """For the step's metrics."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        numbers = range(len(self.pool.members))
        versions = (v for group in self.made.values() for each in group.trajectories for v in each.policy_versions)
        oldest = min(versions, default=self.step - 1)
        return {
            **{f"sampler_{number}_tokens_per_s": self._tokens[number] / seconds for number in numbers},
            "samplers_idle_share": 1 - self._busy_s / (seconds * len(numbers)),
            "queue_depth": self._queue_s / seconds,
            "staleness": float(max(self.step - 1 - oldest, 0)),
            "weights_write_s": self.pool.sync_s,
            "weights_read_s": self._load_s,
            "num_redispatched_groups": self._num_again,
            "num_sampler_deaths": self.pool.num_deaths - self._deaths_before,
        }

    def _hand_out(self) -> None:
        while self._todo:
            member = min(self._with_room(), key=lambda each: each.num_running, default=None)
            if member is None:
                return
            self._hand(self._todo.popleft(), member)

    def _with_room(self) -> list[Member]:
        """Samplers whose slots are not all taken; a group more than that would only be kept from the others."""
        size, ready = self.jobs[0].group_size, self.pool.ready
        return [each for each in ready if each.opened and each.num_running * size < each.opened.num_slots]

    def _hand(self, position: int, member: Member) -> None:
        job = self.jobs[position]
        attempt = self.pool.ledger.dispatch(self.step, position, sampler=member.number, weights=job.weights.number)
        self._out[member.handle.roll.remote(job)] = _Handed(attempt, position, member, time.monotonic())
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
        member.quiet_s, member.num_deaths = 0.0, 0
        self._load_s = max(self._load_s, outcome.load_s)
        group, ledger = copy.deepcopy(outcome.group), self.pool.ledger  # its arrays are Ray's, and cannot be written to
        assert outcome.weights == self.jobs[position].weights, "a sampler answered for other weights"
        ledger.take_back(handed.attempt, episodes=len(group.episodes) + len(group.failed))
        if position in self.made:
            self._drop(handed, "another was first")
            return None
        member.num_running -= 1
        self.made[position] = group
        self._tokens[member.number] += sum(len(each.token_ids_T) for each in group.trajectories)
        ledger.use(handed.attempt, self.step)
        return group

    def _lose(self, member: Member, handed: _Handed, why: str) -> None:
        """A sampler is gone: with it all that it had."""
        lost = {handed.attempt: handed, **{each.attempt: each for each in self._out.values() if each.member is member}}
        self._out = {ref: each for ref, each in self._out.items() if each.member is not member}
        for each in lost.values():
            self._drop(each, "the sampler died")
            self._again(each.position)
        self.pool.replace(member, why, num_lost=len(lost))

    def _look_for_late_ones(self) -> None:
        """Give groups that are past their deadline to others too, and end samplers that hang."""
        now, limit_s = time.monotonic(), self.pool.config.straggler_s
        for member in list(self.pool.ready):
            mine = [each for each in self._out.values() if each.member is member]
            if mine and member.quiet_s > HANGS_AFTER * limit_s:
                why = f"it had groups and finished none for {member.quiet_s:.0f} s (scale.straggler_s = {limit_s:g})"
                self._lose(member, mine[0], why)
        newest = {each.position: each for each in self._out.values()}  # in the order they went out
        for position, each in newest.items():
            have = {other.member.number for other in self._out.values() if other.position == position}
            others = [member for member in self._with_room() if member.number not in have]
            if others and now - each.since > limit_s and position not in self.made:
                member = min(others, key=lambda other: other.num_running)
                late_s = now - each.since
                self.pool.log(f"group {position}: {each.member} is late ({late_s:.0f} s); {member} makes it too")
                self._num_again += 1
                self._hand(position, member)

    def _again(self, position: int) -> None:
        """Put a group that was lost first in the queue, unless it is there or on its way from another."""
        if position not in self.made and all(each.position != position for each in self._out.values()):
            self._num_again += 1
            self._todo.appendleft(position)

    def _drop(self, handed: _Handed, why: str) -> None:
        self.pool.ledger.drop(handed.attempt, why)
        handed.member.num_running -= 1
