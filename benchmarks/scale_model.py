"""A discrete-event simulation of RL on many samplers, learner ranks and search servers, from measured service times.

Samplers share their speed among the turns that they are sampling (processor sharing, with continuous batching's curve:
n turns at once give `rate * n / (n + half)` tokens a second). Search servers and the process that hands out groups are
queues, served in order. A step's learning takes the time of its tokens, divided among the ranks, and what these
exchange. A version of the weights is written once and read by all samplers, which share the disk.

Not in it: failures, stragglers, memory, prompts (their cost is in the measured rate), and the network but for weights.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

Turns = tuple[int, ...]
"""Tokens of each turn of an episode; a search follows each but the last."""


@dataclass(frozen=True, slots=True)
class Service:
    """Service times, measured or assumed; which is which, the one who makes it says."""

    groups: tuple[tuple[Turns, ...], ...]
    """To draw from: episodes that were sampled, by group."""
    rate: float
    """Tokens per second of a sampler with very many turns at once."""
    half: float
    """Turns at once with which it has half of that."""
    slots: int
    """Turns at once that a sampler takes."""
    search_s: float
    """One search, on a server of its own or in the sampler."""
    dispatch_s: float
    """Handing out a group and taking it back, in the one process that does so."""
    write_s: float
    read_s: float
    """A version of the weights, by a sampler that has the disk to itself."""
    disk_readers: float
    """Samplers that can read it at once before they slow each other down."""
    learn_token_s: float
    """Learning from one sampled token, by one rank."""
    exchange_s: float
    """What two ranks exchange in a step; L of them exchange 2 (L - 1) / L of it (ring)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is simulated."""

    samplers: int
    ranks: int = 1
    search_servers: int = 0
    """0: each sampler searches in an index of its own, one search at a time."""
    staleness: int = 0
    """Steps that sampling may run ahead of learning."""
    groups_per_step: int = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one simulated run, per step."""

    step_s: float
    idle_share: float
    """Of the samplers' time, that in which they had no turn to sample."""
    learn_share: float
    """Of all time, that in which the learner learned."""
    search_wait_s: float
    """That a search waited for a server, on average."""
    driver_share: float
    """Of all time, that in which the process that hands out groups was busy."""


@dataclass(slots=True)
class _Sampler:
    """Turns progress in virtual time: the tokens that each running turn has had since the beginning."""

    service: Service
    virtual: float = 0.0
    at: float = 0.0
    running: list[tuple[float, int, _Episode]] = field(default_factory=list)
    num_groups: int = 0
    busy_s: float = 0.0
    paused_until: float = 0.0
    epoch: int = 0
    """Rises when its running turns change; an event of an earlier epoch is void."""

    @property
    def speed(self) -> float:
        """Tokens per second of each of its turns."""
        return self.service.rate / (len(self.running) + self.service.half)

    def advance(self, now: float) -> None:
        """Let time pass."""
        if self.running:
            self.busy_s += now - self.at
            self.virtual += max(now - max(self.at, self.paused_until), 0.0) * self.speed
        self.at = now

    def next_end(self) -> float:
        """When its first turn ends, if nothing changes."""
        return max(self.at, self.paused_until) + max(self.running[0][0] - self.virtual, 0.0) / self.speed


@dataclass(slots=True)
class _Episode:
    turns: deque[int]
    group: _Group
    sampler: _Sampler


@dataclass(slots=True)
class _Group:
    step: int
    num_left: int
    num_tokens: int


class Simulation:
    """One run of `steps` steps; `run` returns its outcome. Groups are drawn, or without a seed taken in their order."""

    def __init__(self, cluster: Cluster, service: Service, *, steps: int = 4, seed: int | None = 0) -> None:
        self._cluster, self._service, self._num_steps = cluster, service, steps
        self._samplers = [_Sampler(service) for _ in range(cluster.samplers)]
        servers = cluster.search_servers or cluster.samplers
        self._server_free = [0.0] * servers
        self._events: list[tuple[float, int, str, object]] = []
        self._count = 0
        self._now = self._driver_free = self._driver_s = self._learn_s = self._search_wait_s = 0.0
        self._num_searches = self._version = self._next_learn = 0
        dice, num_groups = random.Random(seed), cluster.groups_per_step
        drawn = [dice.choice(service.groups) if seed is not None else service.groups[n] for n in range(num_groups)]
        self._todo = deque((step, group) for step in range(steps) for group in drawn)
        self._back = [0] * steps
        self._tokens = [0] * steps
        self._is_learning = False

    def run(self) -> Outcome:
        """Simulate until the last step is learned from."""
        self._hand_out()
        while self._next_learn < self._num_steps:
            self._now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_on_{kind}")(what)
        time_s, samplers = self._now, self._samplers
        return Outcome(
            time_s / self._num_steps,
            1 - sum(each.busy_s for each in samplers) / (time_s * len(samplers)),
            self._learn_s / time_s,
            self._search_wait_s / max(self._num_searches, 1),
            self._driver_s / time_s,
        )

    def _at(self, time_s: float, kind: str, what: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, kind, what))

    def _driver(self) -> float:
        """When the process that hands out groups has done one more thing."""
        self._driver_free = max(self._driver_free, self._now) + self._service.dispatch_s / 2
        self._driver_s += self._service.dispatch_s / 2
        return self._driver_free

    def _hand_out(self) -> None:
        """Groups of the steps that may be sampled now, each to the sampler with most room."""
        order = [(each.num_groups, number) for number, each in enumerate(self._samplers)]
        heapq.heapify(order)
        while self._todo and self._todo[0][0] <= self._version + self._cluster.staleness:
            size, (num_groups, number) = len(self._todo[0][1]), order[0]
            if num_groups and (num_groups + 1) * size > self._service.slots:
                return
            step, episodes = self._todo.popleft()
            sampler = self._samplers[number]
            sampler.num_groups += 1
            heapq.heapreplace(order, (sampler.num_groups, number))
            group = _Group(step, size, sum(map(sum, episodes)))
            self._at(self._driver(), "arrive", [_Episode(deque(turns), group, sampler) for turns in episodes])

    def _on_arrive(self, episodes: Sequence[_Episode]) -> None:
        sampler = episodes[0].sampler
        sampler.advance(self._now)
        for episode in episodes:
            self._count += 1
            heapq.heappush(sampler.running, (sampler.virtual + episode.turns.popleft(), self._count, episode))
        self._changed(sampler)

    def _changed(self, sampler: _Sampler) -> None:
        sampler.epoch += 1
        if sampler.running:
            self._at(sampler.next_end(), "turn", (sampler, sampler.epoch))

    def _on_turn(self, what: tuple[_Sampler, int]) -> None:
        sampler, epoch = what
        if epoch != sampler.epoch:
            return
        sampler.advance(self._now)
        _, _, episode = heapq.heappop(sampler.running)
        if episode.turns:
            self._search(episode)
        else:
            episode.group.num_left -= 1
            if not episode.group.num_left:
                self._at(self._driver(), "back", episode)
        self._changed(sampler)

    def _search(self, episode: _Episode) -> None:
        free = self._server_free
        own = self._samplers.index(episode.sampler) if not self._cluster.search_servers else None
        server = own if own is not None else min(range(len(free)), key=free.__getitem__)
        begins = max(free[server], self._now)
        free[server] = begins + self._service.search_s
        self._search_wait_s += begins - self._now
        self._num_searches += 1
        self._at(free[server], "arrive", [episode])

    def _on_back(self, episode: _Episode) -> None:
        group = episode.group
        episode.sampler.num_groups -= 1
        self._back[group.step] += 1
        self._tokens[group.step] += group.num_tokens
        self._hand_out()
        self._learn()

    def _learn(self) -> None:
        step = self._next_learn
        if self._is_learning or step == self._num_steps or self._back[step] < self._cluster.groups_per_step:
            return
        ranks = self._cluster.ranks
        seconds = self._tokens[step] * self._service.learn_token_s / ranks
        seconds += self._service.exchange_s * 2 * (ranks - 1) / ranks
        self._learn_s += seconds
        self._is_learning = True
        self._at(self._now + seconds + self._service.write_s, "version", None)

    def _on_version(self, _: object) -> None:
        """Weights are there: samplers take them, each between two turns, and go on."""
        self._is_learning = False
        self._next_learn += 1
        self._version += 1
        read_s = self._service.read_s * max(1.0, len(self._samplers) / self._service.disk_readers)
        for sampler in self._samplers:
            sampler.advance(self._now)
            sampler.paused_until = self._now + read_s
            self._changed(sampler)
        self._hand_out()
        self._learn()


def efficiency(cluster: Cluster, service: Service, **more: int) -> tuple[Outcome, float]:
    """An outcome, and what N samplers are worth of N times one, each with its share of a step's groups."""
    one = replace(cluster, samplers=1, groups_per_step=max(cluster.groups_per_step // cluster.samplers, 1))
    outcome = Simulation(cluster, service, **more).run()
    alone = Simulation(replace(one, search_servers=min(one.search_servers, 1)), service, **more).run()
    per_s = cluster.groups_per_step / outcome.step_s
    return outcome, per_s / (cluster.samplers * one.groups_per_step / alone.step_s)
