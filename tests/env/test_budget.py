"""Observations within a budget of tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seekling.env.protocol.grammar import Block, Budget
from tests.env.fakes import count_words


def numbers(start: int, stop: int) -> str:
    return " ".join(str(number) for number in range(start, stop))


def test_short_documents_stay_whole_and_long_ones_share_the_rest_evenly():
    blocks = [Block("A: ", numbers(0, 20)), Block("B: ", "x"), Block("C: ", numbers(50, 90))]
    observation = Budget(14, count_words).fit("", blocks, "")
    # 14 = 3 heads + 1 short body + 2 marks + 2 x 4 words
    assert observation.text == "A: 0 1 2 3 ...\nB: x\nC: 50 51 52 53 ..."
    assert observation.is_truncated


def test_when_not_even_the_frames_fit_the_last_documents_go():
    blocks = [Block(f"Doc {n} is here: ", "word word word") for n in range(1, 9)]
    observation = Budget(11, count_words).fit("<i>", blocks, "</i>")
    # Two heads of 4 words leave 3: a mark each, and the odd word is left over. No third head fits.
    assert observation.text == "<i>Doc 1 is here: ...\nDoc 2 is here: ...</i>"


texts = st.text(alphabet="ab \n", max_size=60)


@given(
    bodies=st.lists(texts, min_size=1, max_size=5),
    tokens=st.integers(1, 60),
    counter=st.sampled_from([len, count_words]),
)
def test_the_budget_is_kept_wherever_frame_and_mark_fit(bodies, tokens, counter):
    blocks = [Block(f"{n}:", body) for n, body in enumerate(bodies)]
    observation = Budget(tokens, counter).fit("<i>", blocks, "</i>")
    assert observation.text.startswith("<i>")
    assert observation.text.endswith("</i>")
    assert counter(observation.text) <= max(tokens, counter("<i> ...</i>"))
    whole = "<i>" + "".join(block.text() for block in blocks).strip() + "</i>"
    assert observation.is_truncated == (counter(whole) > tokens)
    if not observation.is_truncated:
        assert observation.text == whole
