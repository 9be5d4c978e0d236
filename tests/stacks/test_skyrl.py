"""SkyRL-gym's own register and make, on the rows of `seekling data parquet`."""

import pyarrow.parquet as pq
import pytest

skyrl_gym = pytest.importorskip("skyrl_gym", reason="pip install skyrl-gym", exc_type=ImportError)


def test_an_episode_in_skyrl_gym_has_our_prompt_observations_and_reward(village):
    import seekling.stacks.skyrl  # noqa: F401 - registers

    row = next(row for row in pq.read_table(village / "train.parquet").to_pylist() if "Alder" in str(row["prompt"]))
    prompt, name = row.pop("prompt"), row.pop("env_class")
    env = skyrl_gym.make(name, env_config={}, extras={**row, "max_turns": 9})
    assert env.init(prompt) == (prompt, {})
    search = env.step("<search> Alder Mill </search>")
    (observation,) = search["observations"]
    assert observation["role"] == "user"
    assert "It was built in 1612" in observation["content"]
    assert (search["reward"], search["done"]) == (0.0, False)
    last = env.step("<answer> 1612 </answer>")
    assert (last["observations"], last["reward"], last["done"]) == ([], 1.0, True)
    metrics = type(env).aggregate_metrics([env.get_metrics()])
    assert (metrics["em"], metrics["num_searches"]) == (1.0, 1.0)
    env.close()
