"""An episode's rules: a small state machine between a policy's texts and the tools.

`SearchEnv` is shared by all episodes and holds no state of theirs; `Session` is one episode. A session is used by one
thread at a time; `start` and `step` may block on a tool or a program where the environment `may_wait`.

How an episode ends:
- an answer: `answered`;
- the turn budget is used up: `max_turns`. With `forced_answer` one more turn follows, in which only an answer counts;
  a search there is recorded, not executed. The same holds for the last turn of all: nobody could read its result;
- `finish="length"`, the turn was cut by the token budget: `max_tokens`. What was written is not read, even if it looks
  complete ("Answer: Par" would be an answer);
- an invalid action with `invalid_action="stop"`: `parse_error`;
- a tool's or the sandbox's infrastructure fails: `infra_failure`, with the text of the failure. Never an empty passage.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from seekling.config import EnvConfig
from seekling.env.programs import ProgramRunner
from seekling.env.protocol import Action, Protocol
from seekling.env.protocol.grammar import Budget, Observation
from seekling.env.sandbox import Sandbox
from seekling.env.tools import Outcome, Tool, run_tool
from seekling.env.withholding import Withheld, missed_pages
from seekling.errors import InfrastructureError
from seekling.types import Json, Message, Question, StopReason, ToolCall, Turn


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one action led to."""

    turn: Turn
    """Its token counts are left at 0; whoever holds the ids fills them in."""
    is_over: bool
    stop_reason: StopReason | None = None
    answer: str | None = None
    failure: str = ""
    """Text of the infrastructure failure."""


class SearchEnv:
    """Protocol, tools and rules, shared by all episodes.

    The protocol is made by `make_protocol` of the same tools and config; `count_tokens` measures observations, and is
    safe to call from several threads.
    """

    def __init__(
        self,
        protocol: Protocol,
        tools: Mapping[str, Tool],
        config: EnvConfig,
        *,
        sandbox: Sandbox | None = None,
        count_tokens: Callable[[str], int],
    ) -> None:
        assert protocol.name != "code" or sandbox is not None, "the code protocol runs programs and needs a sandbox"
        self.protocol, self.config, self.sandbox = protocol, config, sandbox
        self.tools = {name: tools[name] for name in protocol.tool_names}
        self.budget = Budget(config.observation_tokens, count_tokens)

    @property
    def may_wait(self) -> bool:
        """Whether `start` and `step` may wait for something outside of this process: a program, a server, an own tool.

        Other episodes must go on meanwhile, so whoever runs several calls these in threads. Where nothing is waited
        for, a thread would only take processors from decoding, and make batches a matter of timing.
        """
        return self.protocol.name == "code" or any(tool.may_wait for tool in self.tools.values())

    def start(self, question: Question) -> Session:
        """Begin an episode. Cheap: nothing is opened before it is needed."""
        return Session(self, question)

    def with_config(self, config: EnvConfig) -> SearchEnv:
        """The same environment under other limits; protocol, tools and prompt stay."""
        if config == self.config:
            return self
        return SearchEnv(self.protocol, self.tools, config, sandbox=self.sandbox, count_tokens=self.budget.count_tokens)


class Session:
    """One episode. A context manager; `close` ends its interpreter."""

    def __init__(self, env: SearchEnv, question: Question) -> None:
        self.prompt: list[Message] = env.protocol.prompt(question)
        self._env = env
        self._num_turns = self._num_searches = 0
        self._is_over = False
        self._tools: Mapping[str, Tool] = env.tools
        self._withheld = Withheld(question.withheld, missed=missed_pages(question, env.config.failing_share))
        if question.withheld or self._withheld.missed or not env.config.repeat_passages:
            self._tools = {
                name: replace(tool, function=tool.withholding(self._withheld)) if tool.withholding else tool
                for name, tool in env.tools.items()
            }
        self._programs: ProgramRunner | None = None
        if env.sandbox is not None and env.protocol.name == "code":
            self._programs = ProgramRunner(env.sandbox, self._tools, self._refusal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def step(self, action_text: str, *, finish: Literal["stop", "length"]) -> StepResult:
        """Take one turn: the model's text, its stop string included, which "length" says that the token budget cut."""
        assert not self._is_over, "the episode is over; start another session"
        config = self._env.config
        is_forced = self._num_turns >= config.max_turns
        self._num_turns += 1
        if finish == "length":
            return self._end(Turn(action_text, "invalid", is_forced=is_forced), StopReason.MAX_TOKENS)
        action = self._env.protocol.parse(action_text)
        turn = Turn(action_text, action.kind, action.payload, is_forced=is_forced)
        if action.kind == "answer":
            return self._end(turn, StopReason.ANSWERED, answer=action.payload)
        if action.kind == "invalid" and config.invalid_action == "stop":
            return self._end(turn, StopReason.PARSE_ERROR)
        if self._num_turns >= config.num_generations:
            return self._end(turn, StopReason.MAX_TURNS)
        if action.kind == "invalid":
            return StepResult(replace(turn, observation=self._env.protocol.complaint(action.error)), is_over=False)
        try:
            observation, calls = self._execute(action)
        except InfrastructureError as error:
            return self._end(turn, StopReason.INFRA_FAILURE, failure=f"{type(error).__name__}: {error}")
        if self._num_searches:
            self._withheld.missed = frozenset()
        is_cut = observation.is_truncated
        turn = replace(turn, observation=observation.text, calls=calls, is_observation_truncated=is_cut)
        return StepResult(turn, is_over=False)

    def close(self) -> None:
        """Give up what the episode holds. May be called twice."""
        self._is_over = True
        if self._programs is not None:
            self._programs.close()

    def _end(self, turn: Turn, stop_reason: StopReason, *, answer: str | None = None, failure: str = "") -> StepResult:
        self.close()
        return StepResult(turn, True, stop_reason, answer, failure)

    def _execute(self, action: Action) -> tuple[Observation, tuple[ToolCall, ...]]:
        if action.kind == "code":
            assert self._programs is not None, "the code protocol has a sandbox"
            outcome, calls = self._programs.run(action.payload)
            outcomes = [outcome]
        else:
            outcomes = [self._call(name, arguments) for name, arguments in action.calls]
            calls = tuple(record for outcome in outcomes for record in outcome.records())
            if action.error:
                outcomes.append(Outcome("", {}, error=action.error))
        observation = self._env.protocol.observation(outcomes, self._env.budget)
        is_truncated = observation.is_truncated or any(each.is_truncated for each in outcomes)
        return Observation(observation.text, is_truncated), calls

    def _call(self, name: str, arguments: Mapping[str, Json]) -> Outcome:
        if name not in self._tools:
            near = difflib.get_close_matches(name, self._tools, n=1) or self._tools
            error = f"there is no tool {name!r}; try {', '.join(near)}"
            return Outcome(name, arguments, error=error, is_refused=True)
        outcome = run_tool(self._tools[name], arguments, self._refusal)
        if not self._env.config.repeat_passages:
            self._withheld.passages.update(hit.passage for search in outcome.searches for hit in search.hits)
        return outcome

    def _refusal(self, tool: Tool, arguments: Mapping[str, Json]) -> str:
        """Why a call that fits its tool may not be made, or empty; a search that may be made is counted."""
        if not tool.is_retrieval:
            return ""
        queries = arguments.get("query_list")
        count = len(queries) if isinstance(queries, list) else 1
        limit = self._env.config.max_searches
        if limit and self._num_searches + count > limit:
            left = limit - self._num_searches
            if left == 0:
                return f"No searches are left: all {limit} are used. Answer with what you know."
            return f"{count} searches asked for, {left} left of {limit}."
        self._num_searches += count
        return ""
