"""Episodes that somebody else wrote -> trajectories, in exactly the layout that rollouts have.

Used for experts only: what a policy sampled already has its ids, and they are never made again from text.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from seekling.env.protocol.base import Protocol
from seekling.env.protocol.stopping import cut_after_stop
from seekling.rollout.loop import Recorder
from seekling.rollout.render import Renderer
from seekling.types import Episode, Message, Trajectory


def expert_trajectory(episode: Episode, protocol: Protocol, renderer: Renderer) -> Trajectory:
    """Tokenise an expert's episode turn by turn; its own action tokens are the trained ones.

    A turn that ends in a stop string outside of thoughts ends there, as in a rollout; any other ends with the
    end-of-turn token, which is trained too, since the policy has to learn to stop.

    Args:
        episode: of this protocol; each turn but the last has an observation.
        protocol: its grammar.
        renderer: with the policy's tokenizer.

    Returns:
        The trajectory; log-probabilities are 0, no policy sampled it.
    """
    recorder = Recorder.start(renderer.prompt(episode.prompt))
    for turn in episode.turns:
        ended = cut_after_stop(turn.action, protocol.stops) != (turn.action, True)
        action = renderer.encode_action(turn.action) + (renderer.end_turn() if ended else ())
        if turn.is_given:
            recorder.append_observation(action)
        else:
            recorder.append_action(action, [0.0] * len(action))
        if turn.observation and protocol.continues_turn:
            recorder.append_observation(renderer.continuation(turn.observation))
        elif turn.observation:
            reply = renderer.reply(turn.observation, role=protocol.observation_role, ended=ended)
            recorder.append_observation(reply)
    return recorder.finish()


def opening_trajectory(prompt: Sequence[Message], turn: str, opening: str, renderer: Renderer) -> Trajectory:
    """Tokenise the beginning of an expert's first turn, as far as its tokens are those of the whole turn.

    Args:
        prompt: its messages.
        turn: the text of the whole turn.
        opening: how it begins: what is trained.
        renderer: with the policy's tokenizer.
    """
    pairs = zip(renderer.encode_action(turn), renderer.encode_action(opening), strict=False)
    shared = [token for token, other in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    recorder = Recorder.start(renderer.prompt(prompt))
    recorder.append_action(shared, [0.0] * len(shared))
    return recorder.finish()
