"""Tag episodes as step-wise records and back: the two-sample example, the ids of a rollout, too-long records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from seekling.errors import DataError
from seekling.experts.stepwise import (
    STOP_STRINGS,
    StepRecord,
    read_steps,
    step_trajectory,
    stepwise_records,
    write_steps,
)
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from seekling.types import Episode, EpisodeRecord, Message, StopReason, Turn
from tests.commands import seekling
from tests.env.fakes import QUESTION, make_env
from tests.rollout.policies import ScriptedSampler, encode

T1, S1, I1 = "<think> T1 </think>\n", "<search> S1 </search>", "\n\n<information>I1</information>\n\n"
T2, A = "<think> T2 </think>\n", "<answer> A </answer>"
PROMPT = "System prompt.\nQuestion: Q?\n"


ASKED = (Message("user", PROMPT),)


def example(*, protocol="tags", prompt=ASKED, num_searches=1):
    turns = [Turn(T1 + S1, "search", "S1", observation=I1)] * num_searches + [Turn(T2 + A, "answer", "A")]
    return Episode("q", "", protocol, tuple(prompt), tuple(turns), "A", StopReason.ANSWERED)


@pytest.fixture(scope="module")
def renderer(tokenizer):
    return Renderer(tokenizer)


def test_the_example_of_the_paper_becomes_its_two_samples(tmp_path):
    path = tmp_path / "iterative_sft_data.json"
    report = write_steps([example()], path)
    assert (report.num_episodes, report.num_records, report.num_windowed, report.num_too_long) == (1, 2, 0, 0)
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert [{name: row[name] for name in ("instruction", "input", "output")} for row in rows] == [
        {"instruction": PROMPT, "input": "", "output": T1 + S1},
        {"instruction": PROMPT + T1 + S1 + I1, "input": "", "output": T2 + A},
    ]
    assert [row["pieces"] for row in rows] == [[len(PROMPT)], [len(PROMPT), len(T1 + S1), len(I1)]]
    info = json.loads((tmp_path / "dataset_info.json").read_text(encoding="utf-8"))
    assert info == {
        "iterative_sft_data": {
            "file_name": "iterative_sft_data.json",
            "formatting": "alpaca",
            "columns": {"prompt": "instruction", "query": "input", "response": "output"},
        }
    }
    assert read_steps(path) == stepwise_records(example())


SEARCH, TOLD = "<think> T1 </think><search> S1 </search>", "<information> I1 </information>"
"""As the paper writes them: no pieces, and no line ends between the parts."""


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # Records of other people, in any order.
        (
            [("P Question: Q?" + SEARCH + TOLD, "B"), ("P Question: R?", "C"), ("P Question: Q?", "A")],
            [("P Question: Q?", (SEARCH, TOLD), "B"), ("P Question: R?", (), "C"), ("P Question: Q?", (), "A")],
        ),
        # A question that begins like another one is no turn of its episode.
        (
            [(asked + more, "A") for asked in ("Q: Ada?", "Q: Ada? And her father?") for more in ("", SEARCH + TOLD)],
            [("Q: Ada?", (), "A"), ("Q: Ada?", (SEARCH, TOLD), "A"),
             ("Q: Ada? And her father?", (), "A"), ("Q: Ada? And her father?", (SEARCH, TOLD), "A")],
        ),
    ],
)  # fmt: skip
def test_records_without_pieces_are_cut_at_their_tags(tmp_path, rows, expected):
    path = tmp_path / "steps.json"
    path.write_text(json.dumps([{"instruction": asked, "output": said} for asked, said in rows]), encoding="utf-8")
    assert read_steps(path) == [StepRecord(*each) for each in expected]


def test_the_ids_of_a_record_are_those_of_the_rollout_up_to_its_turn(tokenizer, renderer, tmp_path):
    env = make_env(top_k=1, count_tokens=renderer.count_tokens)
    end = tokenizer.eos_token_id
    written = [
        "<think>I should look up Fowey.</think>\n<search> Fowey </search>",
        "I know it.",
        "<answer> Alnwick </answer>",
    ]
    script = [(renderer.encode(text) + (() if ">" in text else (end,)), "stop") for text in written]
    script[1] = (script[1][0], "eos")
    roller = Roller(env, ScriptedSampler([script]), renderer)
    (group,) = roller.rollout([QUESTION], Decoding(64, 1024))
    (episode,), (sampled,) = group.episodes, group.trajectories
    path = tmp_path / "steps.json"
    write_steps([episode], path)
    records = read_steps(path)
    assert len(records) == 3
    ends = np.flatnonzero(np.diff(np.append(sampled.train_mask_T.astype(int), 0)) == -1) + 1
    starts = np.flatnonzero(np.diff(np.append(0, sampled.train_mask_T.astype(int))) == 1)
    for record, start, stop in zip(records, starts, ends, strict=True):
        made = step_trajectory(record, renderer, env.protocol.stops.strings)
        assert made.token_ids_T.tolist() == sampled.token_ids_T[:stop].tolist()
        assert made.train_mask_T.tolist() == [False] * start + [True] * (stop - start)
    assert encode(tokenizer, "<answer> Alnwick </answer>") == tuple(made.token_ids_T[starts[-1] :].tolist())


def length(record, renderer):
    return len(step_trajectory(record, renderer, STOP_STRINGS).token_ids_T)


def test_a_record_that_is_too_long_loses_its_oldest_turns_whole_and_never_its_end(renderer, tmp_path):
    records = stepwise_records(example(num_searches=4))
    limit = length(records[2], renderer)
    path = tmp_path / "steps.json"
    report = write_steps([example(num_searches=4)], path, max_tokens=limit, renderer=renderer)
    assert (report.num_records, report.num_too_long) == (5, 0)
    kept = read_steps(path)
    assert report.num_windowed == sum(mine != whole for mine, whole in zip(kept, records, strict=True)) > 0
    for mine, whole in zip(kept, records, strict=True):
        assert length(mine, renderer) <= limit
        assert (mine.prompt, mine.output) == (whole.prompt, whole.output)
        assert mine.history == whole.history[len(whole.history) - len(mine.history) :]
        assert len(mine.history) % 2 == 0
    with pytest.raises(DataError, match="5 too long and dropped"):
        write_steps([example(num_searches=4)], path, max_tokens=5, renderer=renderer)


def test_a_system_message_has_its_column_and_other_prompts_and_protocols_are_skipped(tmp_path):
    path = tmp_path / "steps.json"
    system = example(prompt=(Message("system", "Be short."), Message("user", PROMPT)))
    strange = example(prompt=(Message("user", "a"), Message("user", "b")))
    report = write_steps([system, example(protocol="code"), strange], path)
    assert (report.num_records, list(report.skipped.values())) == (2, [1, 1])
    assert "env.protocol=tags" in str(report)
    assert {record.system for record in read_steps(path)} == {"Be short."}
    info = json.loads((tmp_path / "dataset_info.json").read_text(encoding="utf-8"))
    assert info["steps"]["columns"]["system"] == "system"
    write_steps([example()], tmp_path / "more.json")
    assert set(json.loads((tmp_path / "dataset_info.json").read_text(encoding="utf-8"))) == {"steps", "more"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected a JSON array"),
        ("[]", "holds no records"),
        ("[1]", "record 0: expected an object"),
        ('[{"instruction": "a"}]', "record 0: instruction and output"),
        ('[{"instruction": "a", "output": 3}]', "record 0: instruction and output"),
        ('[{"instruction": "a", "output": "b", "history": [["c", "d"]]}]', "a history of chat turns"),
        ('[{"instruction": "abc", "output": "b", "pieces": [2]}]', "do not add up"),
        ('[{"instruction": "abc", "output": "b", "pieces": [2, 1]}]', "do not add up"),
        ('[{"instruction": "abc", "output": "b", "pieces": "x"}]', "do not add up"),
    ],
)
def test_a_damaged_file_is_named_with_its_record(tmp_path, text, words):
    path = tmp_path / "steps.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words):
        read_steps(path)


def test_the_command_writes_the_file_and_says_what_became_of_the_episodes(tmp_path, tiny_model_dir):
    episodes = tmp_path / "expert.jsonl"
    row = EpisodeRecord("expert", QUESTION, example(num_searches=2)).to_json()
    episodes.write_text(json.dumps(row) + "\n", encoding="utf-8")

    def stepwise(*words):
        return seekling("data", "stepwise", episodes, "--out", *map(str, words))

    done = stepwise(tmp_path / "out.json", "--max-tokens", 150, "--model", tiny_model_dir, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.strip().split("\n")[-1])
    assert (report["num_episodes"], report["num_records"] + report["num_too_long"]) == (1, 3)
    assert stepwise(tmp_path / "out.jsonl").exit_code == 1
