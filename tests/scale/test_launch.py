"""Jobs for Slurm and KubeRay: what they ask for, that a shell and a YAML parser read them, and that the script runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from seekling.cli.main import app
from seekling.config import load_recipe, recipe_to_toml
from seekling.config.recipe import build_recipe
from seekling.doctor.cluster import cluster_health
from seekling.scale.ledger import read_attempts
from tests.pipeline.runs import rows, village_recipe

yaml = pytest.importorskip("yaml")
pytest.importorskip("ray")

RAY = ("scale.engine=ray", "scale.num_samplers=16")
SRUN = """#!/bin/bash
# Stands in for srun on one machine: runs the command that follows its options.
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


def launch(*words: object) -> str:
    result = CliRunner().invoke(app, ["train", *map(str, words)], prog_name="seekling")
    assert result.exit_code == 0, result.output
    return result.output


def options_of(script: str) -> set[str]:
    return {line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")}


@pytest.mark.parametrize(
    ("settings", "nodes", "expected"),
    [
        ((), 1, {"--nodes=2", "--cpus-per-task=16"}),
        (("scale.sampler_cpus=4",), 5, {"--nodes=6", "--cpus-per-task=16"}),  # at most four of 16 on each of five
        (("scale.sampler_gpus=0.5",), 4, {"--nodes=5", "--cpus-per-task=4", "--gpus-per-node=2"}),
        (("scale.sampler_gpus=1", "scale.learner_ranks=8"), 16, {"--nodes=17", "--gpus-per-node=8"}),
    ],
)
def test_a_slurm_script_asks_for_all_samplers_and_one_machine_more(settings, nodes, expected):
    script = launch("demo", *RAY, *settings, "--launch", "slurm", "--nodes", nodes, "--out", "runs/with space")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert expected <= options_of(script)
    assert any("gpus" in option for option in options_of(script)) == any("gpus" in each for each in expected)
    assert "--out 'runs/with space' scale.address=\"$head:$port\"\n" in script


def test_a_kuberay_job_has_the_recipe_in_it_and_a_head_without_samplers(tmp_path):
    words = ["nq-mini", *RAY, "scale.sampler_cpus=2", "scale.sampler_gpus=1", "scale.learner_ranks=2"]
    text = launch(*words, "--launch", "kuberay", "--nodes", 8, "--image", "registry/seekling:1", "--out", "runs/x")
    recipe, job = yaml.safe_load_all(text)
    (tmp_path / "recipe.toml").write_text(recipe["data"]["recipe.toml"])
    assert load_recipe(tmp_path / "recipe.toml", []) == load_recipe(Path("nq-mini"), words[1:])
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"]["entrypoint"].split()[:3] == ["seekling", "train", "/recipe/recipe.toml"]
    assert "--out /seekling/runs/x" in job["spec"]["entrypoint"]
    cluster = job["spec"]["rayClusterSpec"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert head["rayStartParams"] == {"num-cpus": "0", "num-gpus": "2", "resources": '"{\\"learner\\": 2}"'}
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 8
    for group, cpus, gpus in ((head, "2", "2"), (workers, "4", "2")):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["limits"] == {"cpu": cpus, "nvidia.com/gpu": gpus}
        assert container["image"] == "registry/seekling:1"
        mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert mounted == {"disk": "/seekling", "recipe": "/recipe"}
        assert {each["name"] for each in pod["volumes"]} == mounted.keys()
        assert pod["volumes"][1]["configMap"]["name"] == recipe["metadata"]["name"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "add scale.engine=ray"),
        ((*RAY, "--nodes", "17"), "from 1 to scale.num_samplers = 16, got 17"),
        ((*RAY, "--out", "/home/me/run"), "--out must be under /seekling"),
    ],
)
def test_what_no_job_can_be_made_of_is_refused(words, message):
    result = CliRunner().invoke(app, ["train", "demo", *words, "--launch", "kuberay"])
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.long
def test_the_slurm_script_runs_the_recipe_on_a_cluster_that_it_starts_and_ends(tiny_model_dir, tmp_path):
    raw = village_recipe(tmp_path, tiny_model_dir, rl={"steps": 1}, eval={"stages": []}, sft={"epochs": 1})
    recipe = build_recipe(raw.model_dump() | {"scale": {"engine": "ray", "num_samplers": 2, "learner_ranks": 2}})
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(recipe))
    script = launch(tmp_path / "recipe.toml", "--launch", "slurm", "--out", tmp_path / "run")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN)
    (tmp_path / "bin" / "srun").chmod(0o755)
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    slurm = {"PATH": path, "SLURM_JOB_ID": str(os.getpid()), "SLURM_CPUS_PER_TASK": "2"}
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env={**os.environ, **slurm})
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "rl"] == [1]
    attempts = read_attempts(tmp_path / "run" / "ledger.jsonl")
    assert attempts
    assert all(each.is_used for each in attempts)
    health = cluster_health(tmp_path / "run")
    assert (health.first_step, health.last_step, len(health.samplers)) == (1, 1, 2)
    assert sum(each.num_used for each in health.samplers) == len([each for each in attempts if each.step])
    assert sum(each.tokens_per_s for each in health.samplers) > 0 < health.weights_write_s
    left = subprocess.run(["pgrep", "-f", f":{20000 + os.getpid() % 10000}"], capture_output=True, text=True)
    assert left.stdout == "", "the script left Ray running"
