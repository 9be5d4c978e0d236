"""The only place where messages become tokens. Sampled ids are never encoded again.

A `Recorder` grows the token view of an episode; `expert_trajectory` makes that of what somebody else wrote.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from seekling.env.protocol import Protocol
from seekling.env.protocol.stopping import cut_after_stop
from seekling.errors import ModelError
from seekling.rollout.sampler import decode
from seekling.types import Episode, Json, Message, Role, Trajectory

_SAID = "\u2983assistant-said-this\u2984"
_OBSERVED = "\u2983environment-said-this\u2984"
_OPENED_THOUGHT = re.compile(r"<think>\s*\Z")
_SPELLED = re.compile("(\u2983[0-9]+\u2984)")


class Renderer:
    """Renders prompts and observations with a tokenizer's own chat template. Safe to share between threads.

    Without a template, messages are joined by blank lines, as for a base model. `tools` are JSON schemas that are
    passed to it, for protocols that use the model's native tool format.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, tools: Sequence[Mapping[str, Json]] = ()) -> None:
        self._tokenizer = tokenizer
        self._tools: list[dict[object, object] | Callable[..., object]] | None = [
            dict(tool.items()) for tool in tools
        ] or None
        self._has_template = tokenizer.chat_template is not None
        self._eos = str(tokenizer.eos_token or "")
        self._special = [str(token) for token in tokenizer.all_special_tokens]
        # Whether control tokens are text is a state of a fast tokenizer, set at a call that differs from the last one.
        # Set by one thread while another encodes, it fails with "Already borrowed" or makes the other's text control
        # tokens; so each of the two kinds of text has a tokenizer, whose state never changes after its first call.
        self._foreign_tokenizer = copy.deepcopy(tokenizer)
        for is_foreign in (False, True):
            self._encode("", is_foreign=is_foreign)

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of the messages and the start of the assistant's turn.

        A control token that a question spells out is text; those of the chat template alone are control tokens.
        """
        text = self._text([Message(message.role, self._mark_spelled(message.content)) for message in messages])
        ids: list[int] = []
        for part in _SPELLED.split(text):
            is_mark = _SPELLED.fullmatch(part) is not None
            ids += self._encode(self._special[int(part[1:-1])], is_foreign=True) if is_mark else self._encode(part)
        return tuple(ids)

    def observation(self, text: str, protocol: Protocol, *, ended: bool) -> tuple[int, ...]:
        """Ids of an observation: inside the assistant's own turn, or a message up to the start of its next turn.

        `ended`: the sampled ids of the turn already end with the end-of-turn token.

        Raises:
            ModelError: the chat template drops or changes the assistant's earlier words.
        """
        if protocol.continues_turn:
            return self.encode(text)
        return self.reply(text, role=protocol.observation_role, ended=ended)

    def reply(self, observation: str, *, role: Role, ended: bool) -> tuple[int, ...]:
        """Ids of an observation that is a message of its own."""
        text = self._text([Message("user", "?"), Message("assistant", _SAID), Message(role, _OBSERVED)])
        _, mark, suffix = text.partition(_SAID)
        before, observed, after = suffix.partition(_OBSERVED)
        if not (mark and observed):
            raise ModelError(
                "the model's chat template does not repeat earlier turns verbatim, so observations cannot be "
                "appended after them; use the tags protocol, or a tokenizer with a plain chat template"
            )
        if ended and self._eos and before.lstrip().startswith(self._eos):
            before = before.lstrip().removeprefix(self._eos)
        return self._encode(before) + self._encode(observation, is_foreign=True) + self._encode(after)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids, special tokens left out."""
        return decode(self._tokenizer, token_ids)

    def token_lengths(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Characters of `decode`'s text that each id adds; of ids that share a character the last has it.

        Where the tokenizer joins words by rules of its own, so that they do not add up, none are given.
        """
        lengths: list[int] = []
        start = shown = 0
        for end in range(1, len(token_ids) + 1):
            text = self.decode(token_ids[start:end])
            if text.endswith("\ufffd"):
                lengths.append(0)  # within a character
                continue
            lengths.append(len(text) - shown)
            # One id of context, because some tokenizers drop the space before a first word.
            start, shown = end - 1, len(self.decode(token_ids[end - 1 : end]))
        total = len(self.decode(token_ids))
        if lengths and lengths[-1] == 0:
            lengths[-1] = total - sum(lengths)
        return tuple(lengths) if sum(lengths) == total and min(lengths, default=0) >= 0 else ()

    def end_turn(self) -> tuple[int, ...]:
        """The id that ends an assistant turn, for written (not sampled) actions; empty when the model has none."""
        token_id = self._tokenizer.eos_token_id
        return (token_id,) if isinstance(token_id, int) else ()

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of an action that an expert wrote, or of an observation. Never used for what a policy sampled."""
        return self._encode(text, is_foreign=True)

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text, for observation budgets."""
        return len(self.encode(text))

    def _mark_spelled(self, content: str) -> str:
        for number, token in enumerate(self._special):
            content = content.replace(token, f"\u2983{number}\u2984")
        return content

    def _text(self, messages: Sequence[Message]) -> str:
        if not self._has_template:
            return "\n\n".join(message.content for message in messages) + "\n"
        text = self._tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            tools=self._tools,
            add_generation_prompt=True,
            tokenize=False,
        )
        assert isinstance(text, str)
        # Reasoning templates write the first <think> themselves. A turn that began inside a thought would be read
        # otherwise than it was stopped, and an expert's action would be learned as part of that thought.
        return _OPENED_THOUGHT.sub("", text)

    def _encode(self, text: str, *, is_foreign: bool = False) -> tuple[int, ...]:
        # A retrieved page may spell out "<|im_end|>"; as foreign text that must not become the real control token.
        tokenizer = self._foreign_tokenizer if is_foreign else self._tokenizer
        encoding = tokenizer(text, add_special_tokens=False, split_special_tokens=is_foreign)
        return tuple(encoding["input_ids"])


def load_renderer(folder: Path) -> Renderer:
    """A renderer with a model folder's tokenizer, without loading the model; for counting and writing."""
    return Renderer(AutoTokenizer.from_pretrained(str(folder), local_files_only=True))


@dataclass(slots=True)
class Recorder:
    """Grows the token view of one episode. Only appends, so every prompt extends the one before."""

    token_ids: list[int] = field(default_factory=list)
    train_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)

    @staticmethod
    def start(prompt_ids: Sequence[int]) -> Recorder:
        """Begin with a prompt."""
        recorder = Recorder()
        recorder.append_observation(prompt_ids)
        return recorder

    def append_action(
        self, token_ids: Sequence[int], logprobs: Sequence[float], *, policy_version: int | None = None
    ) -> None:
        """Append what the policy sampled, or an expert wrote (without a version): these tokens are trained."""
        assert len(token_ids) == len(logprobs)
        self.token_ids += token_ids
        self.train_mask += [True] * len(token_ids)
        self.logprobs += logprobs
        if policy_version is not None:
            self.policy_versions.append(policy_version)

    def append_observation(self, token_ids: Sequence[int]) -> None:
        """Append what the environment said: never trained."""
        self.token_ids += token_ids
        self.train_mask += [False] * len(token_ids)
        self.logprobs += [0.0] * len(token_ids)

    def finish(self, *, temperature: float = 1.0, top_p: float = 1.0, min_p: float = 0.0) -> Trajectory:
        """The finished trajectory, with what its actions were drawn with."""
        return Trajectory(
            np.asarray(self.token_ids, np.int64),
            np.asarray(self.train_mask, np.bool_),
            np.asarray(self.logprobs, np.float32),
            tuple(self.policy_versions),
            temperature,
            top_p,
            min_p,
        )


def expert_trajectory(episode: Episode, protocol: Protocol, renderer: Renderer) -> Trajectory:
    """Tokenise an expert's episode turn by turn, in exactly the layout that rollouts have; its actions are trained.

    A turn that ends in a stop string outside of thoughts ends there, as in a rollout; any other ends with the
    end-of-turn token, which is trained too, since the policy has to learn to stop. Log-probabilities are 0.
    """
    recorder = Recorder.start(renderer.prompt(episode.prompt))
    for turn in episode.turns:
        ended = cut_after_stop(turn.action, protocol.stops) != (turn.action, True)
        action = renderer.encode(turn.action) + (renderer.end_turn() if ended else ())
        if turn.is_given:
            recorder.append_observation(action)
        else:
            recorder.append_action(action, [0.0] * len(action))
        if turn.observation:
            recorder.append_observation(renderer.observation(turn.observation, protocol, ended=ended))
    return recorder.finish()


def opening_trajectory(prompt: Sequence[Message], turn: str, opening: str, renderer: Renderer) -> Trajectory:
    """Tokenise how an expert's first turn begins, as far as its tokens are those of the whole turn; that is trained."""
    pairs = zip(renderer.encode(turn), renderer.encode(opening), strict=False)
    shared = [token for token, other in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    recorder = Recorder.start(renderer.prompt(prompt))
    recorder.append_action(shared, [0.0] * len(shared))
    return recorder.finish()
