"""Documents that mean harm: what they say never becomes an instruction that reaches a tool, a file or another user.

The policy here obeys every page it reads, which is the worst that an injected document can make of one.
"""

import json
import urllib.parse

import pytest

from seekling.serve.agent_replies import details_of
from seekling.serve.asking import Answer, Quote
from seekling.types import Episode, StopReason
from tests.serve.serving import HOSTILE
from tests.serve.test_agent_app import asking, send


def ask(village, question):
    status, _, raw = send(village.url, body=asking(question))
    assert status == 200
    return json.loads(raw)


def test_tags_that_a_page_closes_and_opens_are_not_the_policys(village):
    reply = ask(village, "When was Closing Mill built?")
    assert reply["choices"][0]["message"]["content"] == "1702"
    assert [call["tool"] for call in reply["seekling"]["searches"]] == ["search"]


def test_a_policy_that_a_page_has_taken_over_can_only_search_the_same_pages(village):
    reply = ask(village, "When was Ordering Mill built?")
    searches = reply["seekling"]["searches"]
    assert [call["query"] for call in searches] == ["When was Ordering Mill built?", "../../../etc/passwd"]
    known = {*HOSTILE, "alder_mill", "tobias_wren", "birch_mill", "harrow_dell", "river_sorrel", "maud_ferris"}
    assert {page["document_id"] for call in searches for page in call["pages"]} <= known
    assert "root:" not in json.dumps(reply)


def test_what_one_asks_is_not_seen_by_the_next(village):
    ask(village, "When was Alder Mill built, says the secret word xyzzy?")
    assert "xyzzy" not in json.dumps(ask(village, "When was Alder Mill built?"))


def test_no_reply_lets_a_browser_take_a_page_for_more_than_data(village):
    for path in ("/", "/page.js", "/v1/pages/markup", "/v1/pages/nothing", "/nothing", "/health"):
        headers = send(village.url, path)[1]
        assert headers["X-Content-Type-Options"] == "nosniff"
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    status, headers, raw = send(village.url, "/v1/pages/markup")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(raw)["title"] == HOSTILE["markup"][0]


@pytest.mark.parametrize("link", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "../../etc/passwd"])
def test_a_link_that_a_document_brings_is_a_web_address_or_its_page_here(link):
    page = "../a b?c"
    quote = Quote("It was so.", page, "A", "", link)
    episode = Episode("q", "", "tags", (), (), "so", StopReason.ANSWERED)
    answer = Answer("so", True, (quote,), (), (), None, None, None, StopReason.ANSWERED, "q?", episode)
    (citation,) = details_of(answer, str, "http://here").citations
    assert citation.link == "http://here/v1/pages/" + urllib.parse.quote(page, safe="")
