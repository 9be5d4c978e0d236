"""The nouns of seekling: what flows between the rooms, and nothing else.

Data flows left to right: a `Question` goes through the environment and becomes an `Episode` (message level,
serialisable) with a `Trajectory` (its token view); G of them make an `EpisodeGroup`; a reward function turns each into
a `Reward`. Nothing here touches torch, files or the network.

What is written to disk (`EpisodeRecord` and all it holds) is validated by pydantic when it is read back: a wrong or
unknown field is a `DataError` that names it.

Shape letters used as name suffixes in learn/ and retrieval/: P questions, G episodes per question, B sequences,
T tokens, V vocabulary, K hits, D embedding dimension, A action (trained) tokens.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Literal, TypeVar

import numpy as np
import pydantic

from seekling.errors import DataError

Role = Literal["system", "user", "assistant", "tool"]
Json = pydantic.JsonValue

_Record = TypeVar("_Record")
_NO_UNKNOWN_FIELDS = pydantic.ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class Document:
    """One page of a corpus."""

    id: str
    title: str
    content: str
    """Markdown or plain text; headings are lines that start with '#'."""
    metadata: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Columns such as the file, a date or an address; not part of what the page says."""


@dataclass(frozen=True, slots=True)
class Passage:
    """An indexed slice of a document; what passage-level search returns."""

    id: str
    document_id: str
    title: str
    """Title of the document the passage was cut from."""
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage with the score and the rank (0 is best) that a retriever gave it."""

    passage: Passage
    score: float
    rank: int


@dataclass(frozen=True, slots=True)
class Hop:
    """One fact on the way to an answer: the `relation` of `query_subject` is `answer`, as `document_id` says."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = _NO_UNKNOWN_FIELDS

    query_subject: str
    """Whom or what to look up; usually the title of the document."""
    relation: str
    """What is asked about the subject, in words."""
    answer: str
    """What the document says; the subject of the next hop, or the answer of the question; may be empty."""
    document_id: str
    """The document that says so; empty when none does, as in an unanswerable question."""
    claim: str = ""
    """What the question takes for granted of it, right or wrong; empty when the question asks for it."""


UNANSWERABLE = "unanswerable"
"""Kind of a question that no page answers."""
UNKNOWN_ANSWERS = ("unknown", "not found", "not known", "not stated", "unanswerable")
"""What is right to answer then."""
UNKNOWN_ANSWER = UNKNOWN_ANSWERS[0]


@dataclass(frozen=True, slots=True)
class Question:
    """One task row: a question with its gold answers."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = _NO_UNKNOWN_FIELDS

    id: str
    question: str
    answers: tuple[str, ...]
    """Any of these is right. The first is the canonical one."""
    supporting_ids: tuple[str, ...] = ()
    """Ids of the documents that hold the answer, in hop order; empty when unknown or unanswerable."""
    kind: str = ""
    """For instance single, bridge, several, unanswerable; empty when unknown."""
    source: str = ""
    """Data set name. (source, id) identifies a question, id alone may restart per data set."""
    hops: tuple[Hop, ...] = ()
    """The facts that lead to the answer, in order; empty when unknown. For experts and analysis, never for a policy."""
    labels: tuple[str, ...] = ()
    """Finer groups that figures are given for, such as "false premise" or "new wording"."""
    withheld: tuple[str, ...] = ()
    """Texts that are kept from the policy: no passage and no sentence that says one of them is shown."""

    @property
    def is_side_by_side(self) -> bool:
        """Its facts are looked up independently, and no single one of them is the answer."""
        return self.kind in ("several", "comparison")

    @property
    def key(self) -> tuple[str, str]:
        """What groups episodes of the same question: ids restart per data set, so the source is part of it."""
        return (self.source, self.id)


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, before any tokenisation."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = _NO_UNKNOWN_FIELDS

    role: Role
    content: str


class StopReason(enum.StrEnum):
    """Why an episode ended. A model's mistake is data, so it has a name here instead of an exception."""

    ANSWERED = "answered"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    """The turn or the episode ran out of its token budget before the action was complete."""
    PARSE_ERROR = "parse_error"
    """The protocol says that an unreadable action ends the episode."""
    TOOL_STOP = "tool_stop"
    INFRA_FAILURE = "infra_failure"
    """Search server, sandbox or engine failed: not the policy's fault, left out of groups and of scores."""


ActionKind = Literal["search", "code", "call", "answer", "invalid"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, with what came back or how it failed; arguments that do not fit are a failure too."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = _NO_UNKNOWN_FIELDS

    name: str
    arguments: Mapping[str, Json]
    result: str = ""
    error: str = ""
    """Text of the error the tool raised; it reaches the model as an observation."""
    document_ids: tuple[str, ...] = ()
    """Documents whose text or title the call returned, best first."""
    is_retrieval: bool | None = None
    """The tool searches, and was really asked. None in records that do not say; there the tool's name does."""

    @property
    def is_search(self) -> bool:
        """Whether this counts as a search."""
        return self.name.startswith("search") if self.is_retrieval is None else self.is_retrieval


@dataclass(frozen=True, slots=True)
class Turn:
    """One policy action and the environment's reply."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = _NO_UNKNOWN_FIELDS

    action: str
    """The model's text of this turn, stop tag included, special tokens left out."""
    kind: ActionKind
    payload: str = ""
    """What was parsed: the query, the program, the answer; empty for an invalid action."""
    observation: str = ""
    """The text that went back to the model; empty after the last action."""
    calls: tuple[ToolCall, ...] = ()
    is_forced: bool = False
    """True for the extra last turn in which only an answer counts."""
    is_given: bool = False
    """Of an expert's episode: a policy's turn that the expert goes on from. It is context, not learned from."""
    is_observation_truncated: bool = False
    num_action_tokens: int = 0
    num_observation_tokens: int = 0
    action_lengths: tuple[int, ...] = ()
    """Characters of `action` that each sampled token stands for, 0 for a special token; empty when not recorded."""
    action_logprobs: tuple[float, ...] = ()
    """Log-probability of each sampled token at the episode's temperature, to two decimals. For readers: training uses
    the trajectory's."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished interaction, at message level."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = _NO_UNKNOWN_FIELDS

    question_id: str
    source: str
    protocol: str
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]
    answer: str | None
    """The final answer as written between its marks, stripped; None when there is none."""
    stop_reason: StopReason
    failure: str = ""
    """Text of the infrastructure failure, when that is what ended it."""
    policy_version: int = 0
    """The oldest version of the weights that any of its turns was sampled with."""
    seed: int = 0
    temperature: float = 1.0
    duration_s: float = 0.0
    usage: Mapping[str, float] = field(default_factory=dict)
    """What a served model reported and charged: prompt_tokens (every turn's whole prompt), completion_tokens,
    num_requests, and cost_usd where a price was given. Of our own engine, where it guessed ahead: drafted_tokens, and
    accepted_tokens, those that were right."""

    @property
    def num_searches(self) -> int:
        """Number of retrieval calls that were executed."""
        return sum(call.is_search for turn in self.turns for call in turn.calls)

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object; `from_json` is its inverse."""
        return asdict(self)

    @staticmethod
    def from_json(row: Mapping[str, Json]) -> Episode:
        """Rebuild an episode from `to_json`'s object.

        Raises:
            DataError: the row is not an episode; names each wrong, missing or unknown field.
        """
        return _validate(_episode_adapter(), row, what="Episode")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The token view of an episode: exactly the ids the policy saw and sampled, never re-encoded."""

    token_ids_T: np.ndarray
    """(T,) int64: prompt, actions and observations in order."""
    train_mask_T: np.ndarray
    """(T,) bool: True where the policy sampled the token."""
    logprobs_T: np.ndarray
    """(T,) float32: log-probability of each sampled token under the behaviour policy at `temperature`, before top-p and
    min-p; 0 elsewhere."""
    policy_versions: tuple[int, ...] = ()
    """Version of the weights that each sample was drawn with, in order; empty when no policy sampled it."""
    temperature: float = 1.0
    """Actions were drawn from softmax(logits / temperature); 0: greedily, with log-probabilities of temperature 1."""
    top_p: float = 1.0
    min_p: float = 0.0
    """What truncated the distribution they were drawn from."""

    def __post_init__(self) -> None:
        shapes = {self.token_ids_T.shape, self.train_mask_T.shape, self.logprobs_T.shape}
        assert len(shapes) == 1, f"trajectory arrays differ in shape: {shapes}"
        assert self.token_ids_T.ndim == 1, f"trajectory arrays are not one-dimensional: {shapes}"


@dataclass(frozen=True, slots=True)
class Reward:
    """A total and the named parts it was made of."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = _NO_UNKNOWN_FIELDS

    total: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """Episodes of one question. Infrastructure failures are counted, not kept."""

    question: Question
    episodes: tuple[Episode, ...]
    trajectories: tuple[Trajectory, ...]
    failed: tuple[Episode, ...] = ()
    """Episodes that ended in an infrastructure failure; they carry no trajectory and no reward."""


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One line of an episodes file in a run folder: an episode beside its question and what was made of it."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = _NO_UNKNOWN_FIELDS

    stage: str
    """expert, sft, rl, or eval-<policy> such as eval-base, eval-sft, eval-rl."""
    question: Question
    episode: Episode
    step: int = 0
    """Optimizer step during which it was sampled; 0 outside training."""
    reward: Reward | None = None
    advantage: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    """Evaluation scores, such as em and f1."""

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object; `from_json` is its inverse."""
        row = asdict(self)
        row["episode"] = self.episode.to_json()
        return row

    @staticmethod
    def from_json(row: Mapping[str, Json]) -> EpisodeRecord:
        """Rebuild a record from `to_json`'s object.

        Raises:
            DataError: the row is not a record; names each wrong, missing or unknown field.
        """
        return _validate(_record_adapter(), row, what="EpisodeRecord")


# Adapters are built at first use: building them costs more than the rest of this import.
@functools.cache
def _episode_adapter() -> pydantic.TypeAdapter[Episode]:
    return pydantic.TypeAdapter(Episode)


@functools.cache
def _record_adapter() -> pydantic.TypeAdapter[EpisodeRecord]:
    return pydantic.TypeAdapter(EpisodeRecord)


def _validate(adapter: pydantic.TypeAdapter[_Record], row: Mapping[str, Json], *, what: str) -> _Record:
    try:
        return adapter.validate_python(row)
    except pydantic.ValidationError as error:
        problems = [_describe_problem(problem["loc"], problem["msg"], problem["input"]) for problem in error.errors()]
    lines = [f"not a valid {what} row: {len(problems)} problem(s)", *problems]
    raise DataError("\n  ".join(lines) + "\n  the row was written by another version of seekling, or is damaged")


def _describe_problem(location: tuple[int | str, ...], message: str, value: object) -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{'.'.join(str(part) for part in location) or 'row'}: {message} (got {shown})"
