"""The section `scale`: on which machines a recipe runs. Nothing here changes what is learned."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from seekling.config.base import Positive, PositiveFloat, Section


class ScaleConfig(Section):
    """Where rollouts and learning happen. With `engine = "local"` the other settings are unused."""

    engine: Literal["local", "ray", "tinker"] = "local"
    """local: this process; ray: actors of a Ray cluster; tinker: a service that speaks the Tinker API."""
    address: str = ""
    """Of the Ray cluster, such as "auto" or "10.0.0.1:6379", or the base URL of the Tinker service. Empty: Ray starts
    on this machine; Tinker's own default."""
    key_env: str = "TINKER_API_KEY"
    """Name of the environment variable that holds the Tinker service's key."""
    plain_http: bool = False
    """Send that key over http:// to another machine too, where anybody on the way can read it."""
    num_samplers: Positive = 1
    """Ray actors that roll out, each with an engine, an environment and an index of its own."""
    sampler_cpus: PositiveFloat = 1.0
    """Processor cores of each of them: what Ray reserves, and how many threads its engine uses."""
    sampler_gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs that Ray reserves for each of them."""
    learner_ranks: Positive = 1
    """Processes among which the learner's weights are divided (FSDP2)."""
    learner_timeout_s: PositiveFloat = 1800.0
    """A learner process that takes longer for one batch or step hangs: all of them are started again."""
    weights_dir: str = ""
    """Where each version of the weights is written once and read by all samplers: a folder that all machines have.
    Empty: `weights/` in the run folder."""
    straggler_s: PositiveFloat = 900.0
    """A group that is not back after so many seconds is given to another sampler too; the first result counts."""
    max_restarts: Positive = 5
    """A sampler that dies so often without a group in between ends the run, which can be gone on with."""
