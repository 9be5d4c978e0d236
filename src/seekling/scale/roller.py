"""Groups of episodes over the samplers of a pool: each sampler is given the next group when it has room.

A group is whole or not used. One that went to a sampler that died goes to another, one that takes too long goes to
another too, and the first to come back counts. Which sampler made a group plays no part in what is in it: draws depend
on seed and position alone.

With `rl.optimizer.max_staleness` above 0 sampling is asynchronous: while the last groups of a step are made and the
learner learns from them, samplers have groups of coming steps already. What is out and what is there belong to steps up
to version + staleness, so accepted + running <= (staleness + version + 1) x batch (AReaL, arXiv:2505.24298), and a
group's place is free only when its step was learned from: nothing is older than allowed when its turn comes.
"""

from __future__ import annotations

import copy
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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

    Where it `trains`, these are of an RL step, whose number is the weights' version plus 1. All rollers of a pool share
    its `dispatcher`.
    """

    def __init__(
        self, env: SearchEnv, pool: SamplerPool, renderer: Renderer, dispatcher: Dispatcher, *, trains: bool = True
    ) -> None:
        super().__init__(env, pool, renderer)
        self._pool, self._dispatcher, self._trains = pool, dispatcher, trains
        self._statistics: Mapping[str, float] = {}

    def over(self, env: SearchEnv) -> Roller:
        """See `Roller.over`; evaluations are what other environments are for."""
        return PoolRoller(env, self._pool, self._renderer, self._dispatcher, trains=False)

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
        coming: Sequence[tuple[Sequence[Question], int]] = (),
    ) -> list[EpisodeGroup]:
        """See `Roller.rollout`; raises InfrastructureError when a sampler fails, or dies again and again."""
        pool, dispatcher = self._pool, self._dispatcher
        step = pool.policy_version + 1 if self._trains else 0
        if step:
            pool.ledger.rewind(step)
        rollouts = [
            dispatcher.expect(step + later, self._jobs(questions, decoding, group_size, seed))
            for later, (questions, seed) in enumerate([(questions, seed), *coming])
        ]
        current = rollouts[0]
        try:
            for group in dispatcher.begin(current):
                on_group(group)
            while not current.is_done:
                for group in dispatcher.go_on(current):
                    on_group(group)
            dispatcher.run_ahead()
        except BaseException:  # Ctrl-C too: what is out is given up, and raised on
            dispatcher.give_up()
            raise
        finally:
            dispatcher.end(current)
        self._statistics = dispatcher.statistics(current)
        return [current.made[position] for position in range(len(current.jobs))]

    def _jobs(self, questions: Sequence[Question], decoding: Decoding, group_size: int, seed: int) -> list[Job]:
        return [
            Job(question, decoding, self._env.config, group_size, seed, first)
            for question, first in zip(questions, first_numbers(questions, group_size), strict=True)
        ]


@dataclass(eq=False, slots=True)
class Rollout:
    """The groups of one step or evaluation: those to be handed out, and those that are there."""

    step: int
    jobs: Sequence[Job]
    todo: deque[int]
    made: dict[int, EpisodeGroup] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    """Of groups that are there before their step has begun: their numbers in the ledger."""
    has_begun: bool = False
    started: float = 0.0
    num_early: int = 0
    """Groups that were there when the step began."""
    queue_s: float = 0.0
    """Groups that waited for a sampler, times seconds."""
    load_s: float = 0.0
    num_again: int = 0

    @property
    def is_done(self) -> bool:
        """Whether every group is there."""
        return len(self.made) == len(self.jobs)

    @property
    def staleness(self) -> int:
        """Versions behind the learner, of the oldest token."""
        versions = (v for group in self.made.values() for each in group.trajectories for v in each.policy_versions)
        return max(self.step - 1 - min(versions, default=self.step - 1), 0)


@dataclass(slots=True)
class Period:
    """What samplers did during a rollout and, where they had groups of coming steps, since the one before ended."""

    deaths_before: int
    started: float = field(default_factory=time.monotonic)
    tokens: Counter[int] = field(default_factory=Counter)
    """By sampler."""
    work: list[tuple[int, float, float]] = field(default_factory=list)
    """A sampler, and from when to when it had a group."""

    def busy_s(self, now: float) -> float:
        """Seconds that samplers had groups, of all together."""
        total_s, until = 0.0, dict[int, float]()
        for sampler, begin, end in sorted(self.work, key=lambda each: each[1]):
            begin, end = max(begin, until.get(sampler, self.started)), min(end, now)
            if end > begin:
                total_s, until[sampler] = total_s + end - begin, end
        return total_s


@dataclass(frozen=True, slots=True)
class _Handed:
    """A group that is out."""

    attempt: int
    """Its number in the ledger."""
    rollout: Rollout
    position: int
    member: Member
    since: float


class Dispatcher:
    """Hands groups to the samplers of a pool, those of the current rollout first, and takes them back."""

    def __init__(self, pool: SamplerPool) -> None:
        self._pool = pool
        self._steps: dict[int, Rollout] = {}
        """Of RL steps that are not over, by number."""
        self._out: dict[ray.ObjectRef, _Handed] = {}
        self._period, self._period_goes_on = Period(pool.num_deaths), False

    def expect(self, step: int, jobs: Sequence[Job]) -> Rollout:
        """The rollout of a step, which may be under way; step 0 is an evaluation, whose rollout is always new."""
        new = Rollout(step, jobs, deque(range(len(jobs))))
        return self._steps.setdefault(step, new) if step else new

    def begin(self, rollout: Rollout) -> list[EpisodeGroup]:
        """Its step has come: those of its groups that are there already."""
        rollout.has_begun, rollout.started, rollout.num_early = True, time.monotonic(), len(rollout.made)
        if not self._period_goes_on:
            self._period = Period(self._pool.num_deaths)
        for attempt in rollout.attempts.values():
            self._pool.ledger.use(attempt, rollout.step)
        self._count_ahead()
        return list(rollout.made.values())

    def go_on(self, current: Rollout) -> list[EpisodeGroup]:
        """Hand out what there is room for, and wait for what comes back; the groups of `current` that did."""
        self._pool.welcome()
        for rollout in (current, *self._ahead()):
            while rollout.todo and (member := self._next_with_room(rollout)) is not None:
                self._hand(rollout, rollout.todo.popleft(), member)
        busy, before = {each.member.number: each.member for each in self._out.values()}, time.monotonic()
        ray.wait([*self._out, *self._pool.opening], timeout=LOOK_S)
        waited_s = time.monotonic() - before
        current.queue_s += len(current.todo) * waited_s
        for member in busy.values():
            member.quiet_s += waited_s
        done = ray.wait(list(self._out), num_returns=len(self._out), timeout=0)[0] if self._out else ()
        # What is no longer out was lost with its sampler, a moment before.
        taken = [(self._out[ref].rollout, self._take(ref, self._out.pop(ref))) for ref in done if ref in self._out]
        self._look_for_late_ones()
        self._count_ahead()
        return [group for rollout, group in taken if rollout is current and group is not None]

    def run_ahead(self) -> None:
        """Hand out the groups of coming steps, more than there is room for: nobody does while the learner learns."""
        for rollout in self._ahead():
            ready = list(self._pool.ready)
            while rollout.todo and ready:
                member = min(ready, key=lambda each: each.num_running)
                self._hand(rollout, rollout.todo.popleft(), member)
        self._count_ahead()

    def end(self, rollout: Rollout) -> None:
        """Give up what is still out of it: its groups are there already, or it was given up."""
        mine = {ref: each for ref, each in self._out.items() if each.rollout is rollout}
        for ref, each in mine.items():
            self._drop(each, "another was first" if each.position in rollout.made else "the rollout was given up")
            del self._out[ref]
        self._steps.pop(rollout.step, None)
        if mine:
            self._pool.release_caches()

    def statistics(self, rollout: Rollout) -> dict[str, float]:
        """For the metrics of a step whose rollout has ended; begins to count anew."""
        pool, period, now = self._pool, self._period, time.monotonic()
        period.work += [(each.member.number, each.since, now) for each in self._out.values()]
        numbers, seconds = range(len(pool.members)), max(now - period.started, 1e-9)
        self._period, self._period_goes_on = Period(pool.num_deaths), bool(self._ahead())
        return {
            **{f"sampler_{number}_tokens_per_s": period.tokens[number] / seconds for number in numbers},
            "samplers_idle_share": max(1 - period.busy_s(now) / (seconds * len(numbers)), 0.0),
            "queue_depth": rollout.queue_s / max(now - rollout.started, 1e-9),
            "staleness": float(rollout.staleness),
            "num_groups_early": rollout.num_early,
            "weights_bytes": float(pool.num_weight_bytes),
            "weights_write_s": pool.sync_s,
            "weights_read_s": rollout.load_s,
            "num_redispatched_groups": rollout.num_again,
            "num_sampler_deaths": pool.num_deaths - period.deaths_before,
        }

    def give_up(self) -> None:
        """Coming steps will not come."""
        for rollout in self._ahead():
            self.end(rollout)
            for attempt in rollout.attempts.values():
                self._pool.ledger.drop(attempt, "the rollout was given up")
        self._count_ahead()

    def _ahead(self) -> list[Rollout]:
        return [rollout for _, rollout in sorted(self._steps.items()) if not rollout.has_begun]

    def _count_ahead(self) -> None:
        self._pool.num_ahead = sum(not each.rollout.has_begun for each in self._out.values())

    def _with_room(self, rollout: Rollout) -> Iterator[Member]:
        """Samplers whose slots are not all taken; a group more than that would only be kept from the others."""
        size = rollout.jobs[0].group_size
        return (each for each in self._pool.ready if each.opened and each.num_running * size < each.opened.num_slots)

    def _next_with_room(self, rollout: Rollout) -> Member | None:
        return min(self._with_room(rollout), key=lambda each: each.num_running, default=None)

    def _hand(self, rollout: Rollout, position: int, member: Member) -> None:
        job, weights = rollout.jobs[position], self._pool.weights
        attempt = self._pool.ledger.dispatch(rollout.step, position, sampler=member.number, weights=weights.number)
        rolling = member.handle.roll.remote(job, weights)
        self._out[rolling] = _Handed(attempt, rollout, position, member, time.monotonic())
        member.num_running += 1

    def _take(self, ref: ray.ObjectRef, handed: _Handed) -> EpisodeGroup | None:
        """What came back of a group, if it is the first and whole."""
        member, rollout, position = handed.member, handed.rollout, handed.position
        try:
            outcome: Outcome = ray.get(ref, timeout=GET_S)
        except ray.exceptions.RayTaskError as error:
            self._drop(handed, "the sampler failed")
            raise failure_of(member, error) from None
        except ray.exceptions.RayError as error:
            self._lose(member, handed, first_line(error))
            return None
        member.quiet_s, member.num_deaths = 0.0, 0
        rollout.load_s = max(rollout.load_s, outcome.load_s)
        group, ledger = copy.deepcopy(outcome.group), self._pool.ledger  # its arrays are Ray's, and are read-only
        ledger.take_back(handed.attempt, episodes=len(group.episodes) + len(group.failed))
        if position in rollout.made:
            self._drop(handed, "another was first")
            return None
        member.num_running -= 1
        rollout.made[position] = group
        self._period.tokens[member.number] += sum(len(each.token_ids_T) for each in group.trajectories)
        self._period.work.append((member.number, handed.since, handed.since + outcome.roll_s))
        if rollout.has_begun:
            ledger.use(handed.attempt, rollout.step)
        else:
            rollout.attempts[position] = handed.attempt
        return group

    def _lose(self, member: Member, handed: _Handed, why: str) -> None:
        """A sampler is gone: with it all that it had."""
        lost = {handed.attempt: handed, **{each.attempt: each for each in self._out.values() if each.member is member}}
        self._out = {ref: each for ref, each in self._out.items() if each.member is not member}
        for each in lost.values():
            self._drop(each, "the sampler died")
            self._again(each.rollout, each.position)
        self._pool.replace(member, why, num_lost=len(lost))

    def _look_for_late_ones(self) -> None:
        """Give groups that are past their deadline to others too, and end samplers that hang."""
        now, limit_s = time.monotonic(), self._pool.config.straggler_s
        for member in list(self._pool.ready):
            mine = [each for each in self._out.values() if each.member is member]
            if mine and member.quiet_s > HANGS_AFTER * limit_s:
                why = f"it had groups and finished none for {member.quiet_s:.0f} s (scale.straggler_s = {limit_s:g})"
                self._lose(member, mine[0], why)
        newest = {(each.rollout.step, each.position): each for each in self._out.values()}  # as they went out
        for (_, position), each in newest.items():
            rollout = each.rollout
            have = {other.member.number for other in self._others(rollout, position)}
            others = [member for member in self._with_room(rollout) if member.number not in have]
            if others and now - each.since > limit_s and position not in rollout.made:
                member = min(others, key=lambda other: other.num_running)
                late_s = now - each.since
                self._pool.log(f"group {position}: {each.member} is late ({late_s:.0f} s); {member} makes it too")
                rollout.num_again += 1
                self._hand(rollout, position, member)

    def _others(self, rollout: Rollout, position: int) -> list[_Handed]:
        return [each for each in self._out.values() if each.rollout is rollout and each.position == position]

    def _again(self, rollout: Rollout, position: int) -> None:
        """Put a group that was lost first in the queue, unless it is there or on its way from another."""
        if position not in rollout.made and not self._others(rollout, position):
            rollout.num_again += 1
            rollout.todo.appendleft(position)

    def _drop(self, handed: _Handed, why: str) -> None:
        self._pool.ledger.drop(handed.attempt, why)
        self._period.work.append((handed.member.number, handed.since, time.monotonic()))
        handed.member.num_running -= 1
