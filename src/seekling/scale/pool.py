"""The sampler actors of a run: started, watched, started again when they die. To the rest they are one sampler.

A pool says which weights are to be used; the actors fetch these themselves. Who hands out groups is `roller.py`.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ray
import torch
from ray.actor import ActorHandle
from torch import Tensor
from transformers import PreTrainedModel

from seekling.config import Recipe
from seekling.errors import InfrastructureError, SeeklingError
from seekling.learn.checkpoint import giving
from seekling.learn.learner import Learner
from seekling.rollout.sampler import Sample, Sampler, SampleRequest
from seekling.scale.actor import Opened, Place, SamplerActor, Weights
from seekling.scale.cluster import connect, environment, first_line
from seekling.scale.ledger import Ledger
from seekling.scale.weight_store import WeightStore
from seekling.types import Trajectory

GET_S = 120.0
"""For a result that is ready to arrive; a machine that died with it never sends it."""
COMPLAIN_S = 60.0
"""Between two lines that say that no sampler is there."""
CLOSE_S = 5.0


@dataclass(slots=True)
class Member:
    """One sampler of the pool."""

    number: int
    handle: ActorHandle
    opening: ray.ObjectRef | None
    """Its answer that it is ready; None once that was taken."""
    opened: Opened | None = None
    num_running: int = 0
    """Groups that it has."""
    num_deaths: int = 0
    """In a row, without a group in between."""
    quiet_s: float = 0.0
    """Seconds that it had groups, since it last finished one."""

    def __str__(self) -> str:
        where = f"process {self.opened.process} on {self.opened.machine}" if self.opened else "not ready yet"
        return f"sampler {self.number} ({where})"


class SamplerPool:
    """The samplers of a run, as a `Sampler`; its making raises what kept Ray or a sampler from starting.

    Args:
        recipe: its section scale says how many, and where.
        place: where they find the run's files.
        ledger: told of starts and deaths.
        log: told the same in words.
    """

    def __init__(self, recipe: Recipe, place: Place, ledger: Ledger, log: Callable[[str], None]) -> None:
        self.config, self.ledger, self.log = recipe.scale, ledger, log
        self.store = WeightStore(place.weights)
        self._place = place
        self._disconnect = connect(self.config, log)
        self._taught: ray.ObjectRef = ray.put(())
        self.weights = Weights(0, 0)
        self.num_deaths = 0
        self.sync_s = 0.0
        """Seconds that the last publishing took."""
        self.base: tuple[weakref.ref[Learner], int] | None = None
        """The learner whose adapters are published, and what they are added to in the store."""
        self.num_weight_bytes = 0
        """Of the last version, on disk."""
        self.num_ahead = 0
        """Groups of coming steps that samplers have."""
        self.num_kept = 2 + recipe.rl.optimizer.max_staleness * recipe.runs_ahead
        """Versions of weights: groups that are out may name all of them but the oldest."""
        self._complained = time.monotonic()
        self._has_begun = False
        """Whether a sampler was ready once, so that the recipe is not what keeps others from becoming it."""
        self.members = [self._start(number) for number in range(self.config.num_samplers)]
        try:
            self._first = self._wait_for_first()
        except BaseException:
            self.close()
            raise

    @property
    def policy_version(self) -> int:
        """See `Sampler.policy_version`."""
        return self.weights.version

    @property
    def num_slots(self) -> int:
        """See `Sampler.num_slots`; of all samplers, also of those that are being started."""
        return self._first.num_slots * self.config.num_samplers

    @property
    def dtype(self) -> str:
        """See `Sampler.dtype`."""
        return self._first.dtype

    async def sample(self, request: SampleRequest) -> Sample:
        """See `Sampler.sample`; the requests of a session go to the same sampler."""
        ready = list(self.ready)
        if not ready:
            raise InfrastructureError("no sampler is ready; ask again when Ray has started one")
        member = ready[request.session % len(ready)]
        try:
            sample: Sample = await member.handle.sample.remote(request, self.weights)
        except ray.exceptions.RayError as error:
            raise failure_of(member, error) from None
        return sample

    def take(self, number: int, version: int, started: float) -> None:
        """Sample with a version of the store from now on; it was begun to be written at `started` (perf_counter)."""
        self.weights = Weights(number, version)
        self.store.prune(keep=self.num_kept)
        self.num_weight_bytes = self.store.num_bytes(number)
        self.sync_s = time.perf_counter() - started

    def teach_drafts(self, trajectories: Iterable[Trajectory]) -> None:
        """See `Sampler.teach_drafts`."""
        self._taught = ray.put(tuple(trajectories))
        for member in self.members:  # those that are not ready do it then
            member.handle.teach.remote(self._taught)

    def close_session(self, session: int) -> None:
        """See `Sampler.close_session`."""
        for member in self.ready:
            member.handle.close_session.remote(session)

    def release_caches(self) -> None:
        """See `Sampler.release_caches`; stragglers, whose groups came from others, are given up too.

        Where sampling runs ahead of learning, groups of coming steps are running, and nothing is given up.
        """
        if not self.num_ahead:
            for member in self.ready:
                member.handle.stop.remote()

    def close(self) -> None:
        """End the samplers, and Ray where it was started here; the weights in the store go too."""
        closing = [member.handle.close.remote() for member in self.ready]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for member in self.members:
            ray.kill(member.handle)
        self.members = []
        self._disconnect()
        self.store.remove()

    @property
    def ready(self) -> Iterator[Member]:
        """Those that can be given something to do."""
        return (member for member in self.members if member.opened is not None)

    @property
    def opening(self) -> list[ray.ObjectRef]:
        """What is answered when a sampler that was started is ready."""
        return [member.opening for member in self.members if member.opening is not None]

    def welcome(self) -> None:
        """Take note of samplers that have become ready, or died before.

        Raises:
            SeeklingError: what kept one from becoming ready, if that is the user's mistake, or true of all so far;
                others, such as one that finds the search server away, are started again.
        """
        waiting = {member.opening: member for member in self.members if member.opening is not None}
        done = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)[0] if waiting else ()
        for ref in done:
            member = waiting[ref]
            try:
                member.opened, member.opening = ray.get(ref, timeout=GET_S), None
            except ray.exceptions.RayTaskError as error:
                failure = failure_of(member, error)
                if not (self._has_begun and isinstance(failure, InfrastructureError)):
                    raise failure from None
                self.replace(member, f"it could not begin: {failure}")
                continue
            except ray.exceptions.RayError as error:
                self.replace(member, first_line(error))
                continue
            self._has_begun = True
            self.ledger.note("started", sampler=member.number, process=member.opened.process)
            self.log(f"{member} is ready")
        if any(self.ready):
            self._complained = time.monotonic()
        elif time.monotonic() - self._complained > COMPLAIN_S:
            self._complained = time.monotonic()
            self.log(
                f"no sampler is ready: Ray has no machine with {self.config.sampler_cpus:g} free cores and "
                f"{self.config.sampler_gpus:g} GPUs, or loading takes long; waiting"
            )

    def replace(self, member: Member, why: str, *, num_lost: int = 0) -> None:
        """Start another process for one that died or hangs, with so many groups.

        Raises:
            InfrastructureError: it has died too often without having finished a group.
        """
        member.num_deaths += 1
        self.num_deaths += 1
        self.ledger.note("died", sampler=member.number, why=why)
        self.log(f"{member} is lost, and {num_lost} groups with it, which others make: {why}")
        if member.num_deaths > self.config.max_restarts:
            raise InfrastructureError(
                f"sampler {member.number} died {member.num_deaths} times in a row without finishing a group, "
                f"one more than scale.max_restarts allows; the last cause was: {why}. Mend that; the same command "
                "goes on from the last training state"
            )
        ray.kill(member.handle)
        new = self._start(member.number)
        new.num_deaths = member.num_deaths
        self.members[member.number] = new

    def _start(self, number: int) -> Member:
        config = self.config
        kind = ray.remote(SamplerActor).options(
            num_cpus=config.sampler_cpus,
            num_gpus=config.sampler_gpus,
            max_restarts=0,  # a new process is started by the pool, which knows what the dead one had
            max_task_retries=0,
            max_concurrency=1000,
            scheduling_strategy="SPREAD",
            runtime_env=environment(max(1, int(config.sampler_cpus))),
        )
        handle = kind.remote(self._place)
        return Member(number, handle, handle.open.remote(self._taught))

    def _wait_for_first(self) -> Opened:
        while (first := next((each.opened for each in self.members if each.opened), None)) is None:
            ray.wait(self.opening, timeout=1.0)
            self.welcome()
        return first


def failure_of(member: Member, error: ray.exceptions.RayError) -> SeeklingError:
    """What a sampler raised, or the reason why it raises nothing any more."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return cause if isinstance(cause, SeeklingError) else InfrastructureError(f"{member} failed: {first_line(cause)}")


def open_place(recipe: Recipe, run: Path, model: Path) -> Place:
    """Where the samplers of a run find its files."""
    run = run.resolve()
    shared = recipe.scale.weights_dir
    # Two runs may have the same name in different folders.
    own = f"{run.name}-{hashlib.blake2b(str(run).encode(), digest_size=4).hexdigest()}"
    weights = Path(shared).resolve() / own if shared else run / "weights"
    return Place(recipe, recipe.retrieval.folder(run).resolve(), model.resolve(), weights)


class StoreSync:
    """The `WeightSync` of a pool: each version is written once, and samplers read it before their next group.

    Of a learner that trains adapters, these are written, and what they are added to once.

    Args:
        load: a model directory into memory.
        keeps_digits: write weights as the learner has them; otherwise rounded to what the samplers compute in.
    """

    def __init__(self, load: Callable[[Path], PreTrainedModel], *, keeps_digits: bool) -> None:
        self._load, self._keeps_digits = load, keeps_digits

    def publish(self, learner: Learner, sampler: Sampler, version: int) -> None:
        """See `WeightSync.publish`."""
        pool, giver, started = _pool(sampler), giving(learner), time.perf_counter()
        adapters = giver.adapters()
        if adapters is None:
            self._publish(giver.export_weights(), pool, version)
            return
        if pool.base is None or pool.base[0]() is not learner:
            base = pool.store.write(giver.base_weights())  # in all digits: the sum is rounded, not what is added
            pool.base = weakref.ref(learner), base
            pool.log(
                f"weights: adapters of rank {adapters.rank} on {len(adapters.tensors) // 2} layers go to the samplers; "
                f"what they are added to, {pool.store.num_bytes(base) / 1e6:.1f} MB, goes once"
            )
        pool.take(pool.store.write_adapters(adapters, base=pool.base[1]), version, started)

    def publish_exported(self, folder: Path, sampler: Sampler, version: int) -> None:
        """See `WeightSync.publish_exported`."""
        self._publish(dict(self._load(folder).named_parameters()), _pool(sampler), version)

    def _publish(self, weights: Mapping[str, Tensor], pool: SamplerPool, version: int) -> None:
        started = time.perf_counter()
        dtype = None if self._keeps_digits else getattr(torch, pool.dtype.removeprefix("torch."))
        pool.take(pool.store.write(weights, dtype), version, started)


def _pool(sampler: Sampler) -> SamplerPool:
    assert isinstance(sampler, SamplerPool), f"{type(sampler).__name__} reads no weights from a store"
    return sampler
