"""The model card of an exported policy: the README.md that lies beside its weights.

Figures are those of the run's own tables, with their k/n and intervals. Nothing of a person's machine is in it: of
paths in the recipe only the last part is kept, of addresses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath

from seekling.config import Recipe, recipe_to_toml
from seekling.models.hub import front_matter, published_model
from seekling.report.formats import to_markdown
from seekling.report.read import RunFolder, read_run
from seekling.report.results import policies_of
from seekling.report.tables import tables_of

CARD = "README.md"
_TABLES = ("results", "kinds", "changes", "confidence")
_SENTENCES = ("system_prompt = ", "source = ")
_ADDRESS = re.compile(r'"[^"]*(?://|:\d)[^"]*"')
_PATH = re.compile(r'"[^"]*[/\\\\]([^"/\\\\]+)[/\\\\]*"')
_KEPT = re.compile(r'^(?:spec|encoder|reranker) = "[\w.-]+/[\w.-]+(?:@[\w.-]+)?"')
"""Lines that name a model on a hub."""
_ISO = {
    **{"arabic": "ar", "danish": "da", "dutch": "nl", "english": "en", "finnish": "fi", "french": "fr"},
    **{"german": "de", "greek": "el", "hungarian": "hu", "italian": "it", "norwegian": "no", "portuguese": "pt"},
    **{"romanian": "ro", "russian": "ru", "spanish": "es", "swedish": "sv", "turkish": "tr"},
}


def write_card(folder: Path, run: Path, recipe: Recipe, words: str, *, is_adapter: bool = False) -> None:
    """Write the card of what was exported; `words` say which policy, such as "best: RL step 4 (57/100 on dev)"."""
    read = read_run(run)
    base, licence = published_model(recipe.model.spec)
    head = front_matter(
        base_model=base,
        licence=licence,
        language=_ISO.get(recipe.retrieval.index.language, ""),
        tags=("seekling", "search-agent", "retrieval", recipe.env.protocol),
        name=recipe.name,
        is_adapter=is_adapter,
    )
    name = PurePath(recipe.model.spec).name
    text = "\n\n".join(_parts(read, recipe, words, base or name, licence, is_adapter))
    text = text if base else text.replace(recipe.model.spec, name)  # the tables name the model by its path
    (folder / CARD).write_text(f"{head}\n{text}\n", encoding="utf-8")


def _parts(run: RunFolder, recipe: Recipe, words: str, base: str, licence: str, is_adapter: bool) -> Iterator[str]:
    what = "LoRA adapter for" if is_adapter else "fine-tuned"
    yield f"# {recipe.name}"
    yield (
        f"A search agent: {what} {base}, taught by seekling to answer questions by "
        f"searching pages, in the protocol `{recipe.env.protocol}`. This is the policy {words}."
    )
    if not licence:
        yield f"The licence of {base} is not known here. It binds this model too: look it up before you pass this on."
    yield "## Held-out questions"
    yield from _figures(run, words)
    yield "## Data"
    yield "\n".join(f"- {line}" for line in _data(run, recipe))
    yield "## Recipe\nWhat differs from seekling's defaults:"
    yield f"```toml\n{_public_recipe(recipe)}```"
    yield "## Loading"
    yield _LOADING.format(auto="AutoPeftModelForCausalLM" if is_adapter else "AutoModelForCausalLM",
                          package="peft" if is_adapter else "transformers")  # fmt: skip
    yield "## Limits"
    yield _LIMITS


def _figures(run: RunFolder, words: str) -> Iterator[str]:
    policies = policies_of([run])
    if not policies:
        yield "Not judged: no held-out questions were asked of this run."
        return
    stage = words.removeprefix("best: ").split()[0].lower()
    judged = next((each.title for each in policies if each.name == stage), "")
    if judged:
        yield f"The row of this policy is {judged}."
    else:
        yield "Not judged itself: the figures are of other policies of the same run."
    said: set[str] = set()
    for table in tables_of(policies, _TABLES):
        # A kind's own kinds ("single: new wording") are of a few questions each; `seekling report` has them.
        rows = tuple(row for row in table.rows if table.label != "kinds" or ": " not in str(row[1]))
        yield to_markdown(replace(table, rows=rows, notes=tuple(n for n in table.notes if n not in said))).strip()
        said.update(table.notes)


def _data(run: RunFolder, recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    name = PurePath(data.corpus or recipe.retrieval.index_dir).name or (recipe.retrieval.url and "a search server's")
    own = f"an invented almanac of {data.almanac_pages} pages (seed {data.almanac_seed})"
    yield f"Corpus: {name or own}."
    asked: dict[str, list[str]] = {}
    for record in run.episodes:
        asked.setdefault(record.stage, []).append(record.question.id)
    counted = {stage: (len(ids), len(set(ids))) for stage, ids in asked.items()}
    if "expert" in counted:
        who = f"read from {PurePath(recipe.experts.file).name}" if recipe.experts.file else "by scripted experts"
        yield "SFT: {} expert episodes of {} questions, ".format(*counted["expert"]) + who + "."
    if "rl" in counted:
        yield "RL: {} episodes of {} questions.".format(*counted["rl"])
    judged = {each.num_questions for each in run.evaluations.values()}
    if judged:
        yield f"Held out: {' or '.join(map(str, sorted(judged)))} questions, asked of no policy in training."


def _public_recipe(recipe: Recipe) -> str:
    """The recipe without the places and addresses of whoever trained."""

    def public(line: str) -> str:
        named = _KEPT.match(line)
        if line.startswith(_SENTENCES) or (named and not Path(named[0].split('"')[1]).exists()):
            return line
        return _PATH.sub(r'"\1"', _ADDRESS.sub('"(an address)"', line))

    return "".join(map(public, recipe_to_toml(recipe, only_changes=True).splitlines(keepends=True)))


_LOADING = """The folder is in Hugging Face layout:
```python
from transformers import AutoTokenizer
from {package} import {auto}

model = {auto}.from_pretrained("THIS_REPOSITORY")
tokenizer = AutoTokenizer.from_pretrained("THIS_REPOSITORY")
```
The weights alone write searches that nobody answers. With a run's index around them they are an agent:
`seekling serve RUN` and `seekling ask RUN "..."`. `model.spec = "OWNER/NAME"` in a recipe trains or evaluates them on
other pages. A GGUF file beside the weights is for llama.cpp, whose chat template it holds."""

_LIMITS = """- The figures hold for questions like the held-out ones, about these pages. Other pages give other figures.
- It is a small model: what the search does not find it does not know, and it can be wrong where it does. Read the cited
  page before you rely on an answer.
- What a page says can sway what it answers. Search only pages whose authors you trust, or treat answers accordingly.
- Its confidence (`confidence.json`) was fitted on development questions of the same data and means little elsewhere."""
