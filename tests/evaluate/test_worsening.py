"""A stage that makes a behaviour worse is told, one that changes nothing is not."""

from dataclasses import replace

from seekling.evaluate.worsening import describe_worsening, find_worsening
from seekling.types import StopReason, Turn
from tests.evaluate.episodes import failed, invalid, question, record, search


def cut(number, text, *, stage="eval-rl"):
    turn = Turn(action=text, kind="invalid", num_action_tokens=128)
    return record(question(number), None, search(), turn, stage=stage, stop=StopReason.MAX_TOKENS)


def right(number, *, stage="eval-rl"):
    return record(question(number), "Paris", replace(search(), observation="Paris is the place."), stage=stage)


def good(count, *, stage, start=0):
    return [right(number, stage=stage) for number in range(start, start + count)]


ENDLESS = "<search>Mount Wehawai first" + " climb" * 90


def test_nine_of_a_hundred_that_repeat_a_word_until_the_turn_is_full_are_told_in_plain_words():
    before = good(100, stage="eval-sft")
    after = [cut(number, ENDLESS) for number in range(9)] + good(91, stage="eval-rl", start=9)
    (sentence,) = describe_worsening([*before, *after])
    assert sentence == (
        "RL made it worse than SFT: 91 of 100 are right, 100 before; 91 of 100 answered, 100 before; "
        "9 of 100 ran out of tokens, 0 before; 9 of 100 repeat a word or phrase until the turn is full, 0 before."
    )


def test_each_check_names_what_it_counts():
    before = good(20, stage="eval-sft")
    changed = {
        "wrote an action that cannot be read": lambda n: record(
            question(n), "Paris", right(n).episode.turns[0], invalid()
        ),
        "never searched": lambda n: record(question(n), "Paris"),
        "gave an answer that nothing they found shows": lambda n: record(question(n), "Lyon", search()),
        "are right": lambda n: record(question(n), "Lyon", search()),
    }
    for text, make in changed.items():
        found = {each.text: each for each in find_worsening(before, [make(n) for n in range(20)])}
        assert text in found, text
        worse = found[text]
        assert (worse.before, worse.after) == ((20, 0) if text == "are right" else (0, 20))


def test_infrastructure_failures_and_other_questions_are_in_no_comparison():
    before = good(30, stage="eval-sft")
    after = [failed(question(number)) for number in range(15)] + good(15, stage="eval-rl", start=15)
    assert find_worsening(before, after) == []
    assert find_worsening(before, [cut(number, ENDLESS) for number in range(100, 130)]) == []


def test_what_gets_better_is_no_warning_and_a_base_model_that_cannot_do_anything_loses_nothing():
    hopeless = [record(question(n), None, invalid(), stage="eval-base") for n in range(50)]
    trained = good(30, stage="eval-sft") + [
        record(question(n), "Lyon", search(), stage="eval-sft") for n in range(30, 50)
    ]
    assert describe_worsening([*hopeless, *trained]) == []
    (sentence,) = describe_worsening([*trained, *(record(question(n), None, invalid()) for n in range(50))])
    assert "0 of 50 answered, 50 before" in sentence
