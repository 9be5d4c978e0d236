"""A recipe's questions as Parquet files in the columns that verl and SkyRL read."""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from seekling.files import replacing, write_atomically
from seekling.stacks.environment import NAME, RecipeEnvironment, Split
from seekling.types import Question


def write_parquet(environment: RecipeEnvironment) -> dict[str, int]:
    """Write train.parquet, dev.parquet, test.parquet and verl's agent_loop.yaml into the environment's folder.

    Returns:
        Rows of each file. A set without questions has no file.
    """
    world, folder, counts = environment.world(), environment.folder, dict[str, int]()
    sets: tuple[tuple[Split, list[Question]], ...] = (("train", world.train), ("dev", world.dev), ("test", world.test))
    for split, questions in sets:
        if questions:
            rows = [_row(environment, question, split) for question in questions]
            with replacing(folder / f"{split}.parquet") as path:
                pq.write_table(pa.Table.from_pylist(rows), path)
            counts[split] = len(rows)
    write_atomically(folder / "agent_loop.yaml", f"- name: {NAME}\n  _target_: seekling.stacks.verl.SearchAgentLoop\n")
    return counts


def _row(environment: RecipeEnvironment, question: Question, split: Split) -> dict[str, object]:
    golds = {"target": list(question.answers)}
    return {
        "data_source": question.source or NAME,
        "prompt": [{"role": each.role, "content": each.content} for each in environment.env.protocol.prompt(question)],
        "ability": "search",
        "agent_name": NAME,  # verl
        "reward_model": {"style": "rule", "ground_truth": golds},
        "env_class": NAME,  # SkyRL
        "reward_spec": {"method": "rule", "ground_truth": golds},
        "extra_info": environment.extra_info(question, split),
    }
