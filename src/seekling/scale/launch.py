"""A recipe as a job of a cluster's scheduler: a batch script for Slurm, a RayJob for Kubernetes with KubeRay.

Both start Ray on one machine for the command and the learner, and on others for the samplers. Both give the same
command again when a machine fails: it goes on from the last training state. Nothing is submitted.
"""

from __future__ import annotations

import math
import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seekling.config import Recipe, ScaleConfig, recipe_to_toml
from seekling.errors import ConfigError

LEARNER = "learner"
"""Ray's custom resource of the learner's machine, 1 for each rank; a cluster without it places ranks anywhere."""
_CLAIM = "/seekling"
_RAY_VERSION = "2.60.0"
"""Of constraints.txt; KubeRay compares it with the image's."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a job asks of a cluster: `num_nodes` machines for samplers, and one more for the command and the learner."""

    num_nodes: int
    cpus: int
    """Of each machine for samplers."""
    gpus: int
    ranks: int
    learner_gpus: int
    """Of the machine for the learner; with one rank its GPU is the command's own, and Ray is not told of it."""

    @classmethod
    def of(cls, scale: ScaleConfig, num_nodes: int) -> Shape:
        """The smallest machines that hold the samplers of a recipe, shared out evenly.

        Raises:
            ConfigError: the recipe does not sample on Ray, or there are fewer samplers than machines.
        """
        if scale.engine != "ray":
            raise ConfigError(
                f'--launch needs a recipe whose samplers run on Ray, got scale.engine = "{scale.engine}"; '
                "add scale.engine=ray and scale.num_samplers=N"
            )
        if not 1 <= num_nodes <= scale.num_samplers:
            raise ConfigError(
                f"--nodes must be from 1 to scale.num_samplers = {scale.num_samplers}, got {num_nodes}; "
                "each machine gets one sampler or more"
            )
        per_node = math.ceil(scale.num_samplers / num_nodes)
        gpus = math.ceil(per_node * scale.sampler_gpus)
        cpus = math.ceil(per_node * scale.sampler_cpus)
        return cls(num_nodes, cpus, gpus, scale.learner_ranks, scale.learner_ranks if gpus else 0)

    @property
    def ray_gpus(self) -> int:
        """GPUs of the learner's machine that Ray hands out."""
        return self.learner_gpus if self.ranks > 1 else 0


def render_job(
    recipe: Recipe, words: list[str], run: Path, *, to: Literal["slurm", "kuberay"], num_nodes: int, image: str
) -> str:
    """Write a recipe as a job.

    Args:
        recipe: with these changes made.
        words: name or path of the recipe, and changes to it, as `seekling train` takes them.
        run: the run folder, on a disk that all machines see.
        to: slurm: a script for `sbatch`; kuberay: YAML for `kubectl apply`, which has the recipe with all its settings.
        num_nodes: machines for samplers.
        image: of the containers; for kuberay only.

    Raises:
        ConfigError: the recipe does not sample on Ray, has fewer samplers than machines, or KubeRay could not run it.
    """
    shape = Shape.of(recipe.scale, num_nodes)
    if to == "slurm":
        return _slurm(recipe.name, words, run, shape)
    if not run.is_absolute():
        run = Path(_CLAIM) / run
    if not run.is_relative_to(_CLAIM):
        raise ConfigError(f"--out must be under {_CLAIM}, where all pods see the same disk, got {run}")
    return _kuberay(recipe, run, shape, image)


def _slurm(name: str, words: list[str], run: Path, shape: Shape) -> str:
    gpus = max(shape.gpus, shape.learner_gpus)
    gpu_line = f"#SBATCH --gpus-per-node={gpus}\n" if gpus else ""
    train = shlex.join(["seekling", "train", *words, "--out", str(run)])
    resources = shlex.quote(f'{{"{LEARNER}": {shape.ranks}}}')
    return f"""\
#!/bin/bash
# Submit with `sbatch FILE`, from the folder that relative paths below begin in. Options of sbatch win over those
# here; partition, account, time and memory are not among these. Submitted again, the job goes on.
#SBATCH --job-name={_label(name)}
#SBATCH --nodes={shape.num_nodes + 1}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={shape.cpus}
{gpu_line}#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
set -euo pipefail

head=${{SLURMD_NODENAME:-$(hostname)}}
port=$((20000 + SLURM_JOB_ID % 10000))  # another job may have a Ray on this machine too
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
# Ray lets in only who has this job's token; srun hands it on.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export RAY_AUTH_TOKEN

# This machine has the command and the learner, and no sampler.
ray start --head --block --port="$port" --num-cpus=0 --num-gpus={shape.ray_gpus} --resources={resources} \\
    --include-dashboard=false --disable-usage-stats &
until ray health-check --address "$head:$port" >/dev/null 2>&1; do kill -0 $!; sleep 1; done
srun --nodes={shape.num_nodes} --ntasks={shape.num_nodes} --exclude="$head" \\
    ray start --block --address="$head:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus={shape.gpus} \\
    --disable-usage-stats &

{train} scale.address="$head:$port"
"""


def _kuberay(recipe: Recipe, run: Path, shape: Shape, image: str) -> str:
    name = _label(recipe.name)
    train = shlex.join(["seekling", "train", "/recipe/recipe.toml", "--out", str(run), "scale.address=auto"])
    head = _pod("head", name, image, max(2, shape.ranks), shape.learner_gpus)
    worker = _pod("samplers", name, image, shape.cpus, shape.gpus)
    return f"""\
# Submit with `kubectl apply -f FILE`. Needs the KubeRay operator, the image (with 'seekling[ray]' in it), and a volume
# claim `seekling` that many pods may write to (ReadWriteMany), which is {_CLAIM} in each of them: files that the
# recipe names must be there. After a failure the operator gives the same command to a new cluster, which goes on
# from the last training state.
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
data:
  recipe.toml: |
{textwrap.indent(recipe_to_toml(recipe), "    ")}\
---
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: {name}
spec:
  entrypoint: {train}
  entrypointNumCpus: 0
  shutdownAfterJobFinishes: true
  backoffLimit: 5
  rayClusterSpec:
    rayVersion: "{_RAY_VERSION}"
    headGroupSpec:
      rayStartParams:
        num-cpus: "0"
        num-gpus: "{shape.ray_gpus}"
        resources: '"{{\\"{LEARNER}\\": {shape.ranks}}}"'
      template:
{textwrap.indent(head, "        ")}\
    workerGroupSpecs:
    - groupName: samplers
      replicas: {shape.num_nodes}
      minReplicas: {shape.num_nodes}
      maxReplicas: {shape.num_nodes}
      rayStartParams:
        num-cpus: "{shape.cpus}"
      template:
{textwrap.indent(worker, "        ")}"""


def _pod(name: str, recipe: str, image: str, cpus: int, gpus: int) -> str:
    gpu_line = f'\n        nvidia.com/gpu: "{gpus}"' if gpus else ""
    return f"""\
spec:
  containers:
  - name: {name}
    image: {image}
    resources:
      requests:
        cpu: "{cpus}"
      limits:
        cpu: "{cpus}"{gpu_line}
    volumeMounts:
    - name: disk
      mountPath: {_CLAIM}
    - name: recipe
      mountPath: /recipe
  volumes:
  - name: disk
    persistentVolumeClaim:
      claimName: seekling
  - name: recipe
    configMap:
      name: {recipe}
"""


def _label(name: str) -> str:
    """A name as Kubernetes takes it, and Slurm too."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "seekling"
