"""Episodes that somebody else wrote -> trajectories, in exactly the layout that rollouts have.

Used for experts only: what a policy sampled already has its ids, and they are never made again from text.
"""

from __future__ import annotations

from seekling.env.protocol import Protocol
from seekling.env.protocol.stopping import cut_after_stop
from seekling.rollout.loop import Recorder
from seekling.rollout.render import Renderer
from seekling.types import Episode, Trajectory


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
