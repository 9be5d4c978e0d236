"""The written page: its data, its policy, and that nothing in a run folder can become markup."""

import base64
import dataclasses
import hashlib
import html.parser
import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekling.config import Recipe
from seekling.errors import DataError
from seekling.evaluate.result_files import read_records, write_summary
from seekling.evaluate.settings import EvalSettings
from seekling.evaluate.summary import summarize
from seekling.report import write_report
from seekling.report.formats import print_results
from seekling.report.json_lines import encode
from seekling.report.packing import Packer
from seekling.report.read import read_run
from seekling.types import Episode, EpisodeRecord, Message, Question, Reward, StopReason, ToolCall, Turn
from tests.report.run_folder import write_records, write_run


class Blocks(html.parser.HTMLParser):
    """Collects scripts by id, and every tag that is not one of the page's own."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.tags, self._id = {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "script":
            self._id = dict(attributes).get("id", "code")
            self.scripts[self._id] = ""

    def handle_data(self, data):
        if self._id:
            self.scripts[self._id] += data

    def handle_endtag(self, tag):
        self._id = None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "demo", questions=12, steps=3)


@pytest.fixture(scope="module")
def page(run):
    out = run.parent / "report.html"
    assert write_report([run], out) == []
    return out.read_text(encoding="utf-8")


def test_the_page_holds_the_run(page):
    scripts = Blocks(page).scripts
    overview, index = json.loads(scripts["overview"]), json.loads(scripts["index-0"])
    (run,) = overview["runs"]
    assert run["recipe"]["name"] == "demo"
    assert [row[0] for row in run["tables"]["results"]["rows"]] == ["base", "SFT", "SFT+RL"]
    charts = {chart["title"]: chart["lines"][0] for chart in run["charts"]["learning"]}
    assert charts["Reward"]["xs"] == [1, 2, 3]
    assert len(charts["SFT loss"]["ys"]) == 38
    assert index["count"] == len(index["columns"]["stage"]) == sum(len(chunk) for chunk in chunk_rows(scripts))
    assert len(index["questions"]) == 12


def chunk_rows(scripts):
    return [json.loads(text)["episodes"] for name, text in scripts.items() if name.startswith("episodes-0-")]


def test_what_a_stage_made_worse_is_on_the_first_screen_and_in_the_terminal(tmp_path, capsys):
    run = write_run(tmp_path / "worse", questions=20, steps=2)
    endless = Turn("<search>the mill" + " mill" * 90, "invalid", num_action_tokens=128)
    sft = [record for record in read_run(run).episodes if record.stage == "eval-sft"]
    cut = {"turns": (endless,), "answer": None, "stop_reason": StopReason.MAX_TOKENS}
    rl = [dataclasses.replace(r, stage="eval-rl", episode=dataclasses.replace(r.episode, **cut)) for r in sft]
    write_records(run, "eval-rl", rl)
    write_report([run], run.parent / "worse.html")
    (sentence,) = overview_of(run.parent / "worse.html")["warnings"]
    assert sentence.startswith("RL made it worse than SFT: ")
    assert "repeat a word or phrase until the turn is full, 0 before" in sentence
    print_results(run)
    assert f"warning: {sentence}" in " ".join(capsys.readouterr().out.split())


def test_the_page_names_no_address_outside_itself(page):
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe|object|embed|base)\b", page)
    assert " src=" not in page


def test_the_policy_allows_exactly_the_inlined_script_and_style(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert f"script-src '{digest(Blocks(page).scripts['code'])}'" in policy
    assert f"style-src '{digest(style)}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy


def digest(text):
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_script_never_makes_markup_from_strings(page):
    code = Blocks(page).scripts["code"]
    words = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser")
    assert [word for word in words if word in code] == []


ATTACKS = [
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 1</script>",
    "</SCRIPT ><img src=x onerror='window.pwned = 1'>",
    "<!--<script>",
    "--><svg/onload=window.pwned=1>",
    "<img src=x onerror=window.pwned=1>",
    "\" onmouseover=\"window.pwned=1\" x=\"",
    "javascript:window.pwned=1",
    "{{script}} {{data}} {{policy}}",
    "${window.pwned=1} `+window.pwned=1+`",
    "line\u2028separator\u2029paragraph \u0000 nul \ufeff bom \ud800 lone",
    "&lt;b&gt;&amp;&#60;script&#62;",
    "<a href='javascript:window.pwned=1'>x</a>",
    "]]><style>*{display:none}</style>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.pwned=1>",
    "<meta http-equiv=refresh content='0;url=javascript:window.pwned=1'><base href=//evil.example>",
    "<link rel=stylesheet href=//evil.example/x.css><object data=//evil.example>",
    "{{constructor.constructor('window.pwned=1')()}}",
    "__proto__",
    "constructor",
    "\u202eturned \u2066 isolated \x1b[31mred\x1b]0;title\x07",
    "<mark title='</mark><script>window.pwned=1</script>'>",
]  # fmt: skip


def hostile_record(text, stage="eval-rl"):
    """A record that says the same hostile thing in every field that holds free text."""
    call = ToolCall(text, {text: text, "nested": [text, {"x": text}]}, text + "!", text, (text,))
    turns = (
        Turn(
            text, "search", text, f"before {text} after", (call,), action_lengths=(len(text),), action_logprobs=(-1.0,)
        ),
        Turn(f"<think>{text}</think>```python\n{text}\n```<answer>{text}</answer>", "answer", text),
    )
    question = Question(text, text, (text, "x"), (text,), text, text)
    episode = Episode(text, text, text, (Message("user", text),), turns, text, StopReason.ANSWERED, failure=text)
    return EpisodeRecord(stage, question, episode, reward=Reward(1.0, {text: 1.0}), scores={text: 0.0, "em": 0.0})


def write_hostile_run(folder, attacks=ATTACKS):
    folder.mkdir(parents=True)
    (folder / "episodes").mkdir()
    (folder / "eval").mkdir()
    for stage in ("eval-base", "eval-rl", "rl", "eval-<b>x"):
        rows = [json.dumps(hostile_record(text, stage).to_json()) for text in attacks]
        (folder / "episodes" / f"{stage.replace('<', '(')}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    summary = summarize(read_records(folder / "episodes" / "eval-rl.jsonl"))
    (group,) = summarize([hostile_record("x")]).by_kind.values()
    settings = dataclasses.replace(
        EvalSettings.from_recipe(Recipe(), model=attacks[1]), protocol=attacks[0], temperature=summary.temperatures[0]
    )
    words = [text.replace("\ud800", "") for text in attacks]  # a summary with half a character is refused as damaged
    kinds, counts = dict.fromkeys(words, group), dict.fromkeys(words, 2)
    made_up = {"by_kind": kinds, "by_source": kinds, "exclusions": counts, "failures": counts}
    golds = {"question_set_hash": words[0], "vacuous_golds": tuple(words[:3]), "num_vacuous_golds": 3}
    write_summary(folder, dataclasses.replace(summary, settings=settings, **made_up, **golds))
    everything = {f"{i}": text for i, text in enumerate(attacks)} | {text: text for text in attacks}
    (folder / "progress.json").write_text(json.dumps({"done": attacks, "seconds": dict.fromkeys(attacks, 1.0)}))
    (folder / "record.json").write_text(
        json.dumps({"machine": everything, "versions": everything, "model": attacks[1]})
    )
    (folder / "metrics.jsonl").write_text(
        json.dumps({"stage": "rl", "step": 1, "loss": 1} | {text: 2.0 for text in attacks})
    )
    lines = [f"{json.dumps(str(i))} = {json.dumps(t.replace(chr(0xD800), ''))}" for i, t in enumerate(attacks)]
    (folder / "recipe.toml").write_text("\n".join(lines) + f"\nname = {json.dumps(attacks[1])}", encoding="utf-8")
    return folder


def test_nothing_a_model_wrote_becomes_markup(tmp_path, page):
    out = tmp_path / "report.html"
    run = write_hostile_run(tmp_path / "<script>window.pwned=1<" / "b>hostile")
    write_report([run], out)
    text = out.read_text(encoding="utf-8")
    honest, hostile = Blocks(page), Blocks(text)
    assert set(hostile.tags) == set(honest.tags)
    assert [tag for tag in hostile.tags if tag != "script"] == [tag for tag in honest.tags if tag != "script"]
    for attack in ATTACKS:
        if "<" in attack or "&" in attack or "\u2028" in attack:
            assert attack not in text, attack
    for name, script in hostile.scripts.items():
        if name != "code":
            assert not set(script) & set("<>&\u2028\u2029\x00")
    kept = json.loads(hostile.scripts["episodes-0-0-0"])
    assert set(ATTACKS) <= set(kept["strings"])


@given(st.recursive(st.text() | st.integers() | st.none(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_encoded_data_is_inert_and_reads_back_as_it_was(value):
    text = encode(value)
    assert not set(text) & set("<>&\u2028\u2029")
    text.encode("utf-8")
    assert json.loads(text) == value


def overview_of(page):
    """The first run's part of a written page."""
    return json.loads(Blocks(page.read_text(encoding="utf-8")).scripts["overview"])["runs"][0]


def pack(folder, records):
    """Index and chunks of records, through a file as in life."""
    write_records(folder, "rl", records)
    packed = Packer().pack(read_run(folder).files)
    return packed.index, [json.loads(text) for text in packed.chunks.values()]


def test_a_result_that_the_policy_did_not_see_is_kept_beside_the_observation(tmp_path):
    call = ToolCall("search", {}, result="the whole page")
    seen = Turn("a", "search", observation="<information>the whole page</information>", calls=(call,))
    unseen = Turn("a", "code", observation="printed", calls=(call,))
    episode = Episode("q", "", "code", (), (seen, unseen), None, StopReason.MAX_TURNS)
    _, (chunk,) = pack(tmp_path, [EpisodeRecord("rl", Question("q", "?", ("a",)), episode)])
    first, second = (turn["calls"][0]["result"] for turn in chunk["episodes"][0]["turns"])
    assert first is None
    assert chunk["strings"][second] == "the whole page"


def test_signs_of_collapse_stand_on_the_page(tmp_path):
    run = write_run(tmp_path / "sick", questions=6, steps=2)
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"stage": "rl", "step": 3, "health_kl": 0.25}) + "\n")
    write_report([run], tmp_path / "page.html")
    assert overview_of(tmp_path / "page.html")["health"] == [
        "Step 3: sampler and learner disagree (KL per token): 0.25."
    ]


def test_a_refused_report_leaves_nothing_behind(tmp_path):
    with pytest.raises(DataError, match="at least one run folder"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(DataError, match="there is no run folder"):
        write_report([tmp_path / "none"], tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_reading_a_run_loads_no_model_and_no_index():
    heavy = "torch transformers tokenizers pyarrow bm25s httpx2 seekling.retrieval seekling.learn"
    code = f"import sys, seekling.report, seekling.report.watch; print(set('{heavy}'.split()) & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
