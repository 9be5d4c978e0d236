"""Every text that an episode shows a model, as files to be read by people.

Prompts are part of a trained model's world: changing one changes what checkpoints can do. To change a text on purpose,
run `python -m tests.golden.test_env_texts` and read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from seekling.env.tools import tool_from_function
from tests.env.fakes import QUESTION, make_env

FOLDER = Path(__file__).parent / "env"


CALLS = {
    "tags": "<river_length> Tweed </river_length>",
    "code": '```python\nprint(river_length(river="Tweed"))\n```\n',
    "tools": '<tool_call>{"name": "river_length", "arguments": {"river": "Tweed"}}</tool_call>',
}


def river_length(river: str) -> int:
    """Length of a river in kilometres."""
    return {"Aln": 40}[river]


def transcript(name: str) -> str:
    """A whole episode: prompt, searches, an observation that is cut, an invalid action, a tool's error, the answer."""
    protocol_name, _, variant = name.partition("-")
    env = make_env(
        protocol=protocol_name,
        native_tools=variant == "native",
        user_tools=[tool_from_function(river_length)] if variant else [],
        max_turns=6,
        observation_tokens=24,
    )
    grammar = env.protocol
    session = env.start(QUESTION)
    parts = [f"[{message.role}]\n{message.content}" for message in session.prompt]
    actions = [
        grammar.act(grammar.search_action("harbour of Fowey"), think="Who built the harbour?"),
        grammar.act(grammar.search_action("zebra"), think="What else?"),
        "I am not sure.",
    ]
    if variant:
        actions.append(f"<think> How long is it? </think>\n{CALLS[protocol_name]}")
    if variant == "tool":  # searches are as without it
        del actions[:2]
    actions.append(grammar.act(grammar.answer_action("Alnwick"), think="I know."))
    for action in actions:
        result = session.step(action, finish="stop")
        role = "assistant, continued" if grammar.continues_turn else grammar.observation_role
        parts += [f"[assistant]\n{action}", f"[{role}]\n{result.turn.observation}"]
    assert result.answer == "Alnwick"
    return "\n".join(parts[:-1]) + "\n"


@pytest.mark.parametrize("name", ["tags", "tags-tool", "code", "code-tool", "tools", "tools-tool", "tools-native"])
def test_an_episodes_texts_are_those_on_file(name):
    assert transcript(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for each in ("tags", "tags-tool", "code", "code-tool", "tools", "tools-tool", "tools-native"):
        (FOLDER / f"{each}.txt").write_text(transcript(each), encoding="utf-8")
