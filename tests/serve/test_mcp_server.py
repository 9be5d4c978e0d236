"""The agent's tools as the official MCP client meets them, over HTTP and over stdin and stdout."""

import asyncio
import os
import sys

import httpx2
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from seekling.serve.keys import Keys, add_key
from tests.patience import FAILS_AFTER_S
from tests.serve.serving import HOSTILE, serve_village


def talk(transport, conversation):
    """What a conversation with a server came to."""

    async def talking():
        async with Client(transport) as client:
            return await conversation(client)

    return asyncio.run(asyncio.wait_for(talking(), FAILS_AFTER_S))


def test_a_program_searches_reads_and_asks_over_http(village):
    async def conversation(client):
        tools = await client.list_tools()
        found = await client.call_tool("search", {"query": "Alder Mill", "top_k": 1})
        (passage,) = found.structured_content["passages"]
        page = await client.call_tool("read", {"page_id": passage["page_id"]})
        answer = await client.call_tool("ask", {"question": "When was Alder Mill built?"})
        return {tool.name for tool in tools.tools}, page.structured_content, answer.structured_content

    tools, page, answer = talk(f"{village.url}/mcp", conversation)
    assert tools == {"search", "read", "ask"}
    assert (page["page_id"], page["title"], "1612" in page["text"]) == ("alder_mill", "Alder Mill", True)
    assert (answer["answer"], answer["is_found"]) == ("1612", True)
    assert answer["citations"][0]["document_id"] == "alder_mill"


@pytest.mark.parametrize(
    "page", ["/etc/passwd", "../../../etc/passwd", "../village/served.sqlite", "", "file:///etc/hosts"]
)
def test_read_reads_the_index_and_nothing_else(village, page):
    async def conversation(client):
        return await client.call_tool("read", {"page_id": page})

    result = talk(f"{village.url}/mcp", conversation)
    assert result.is_error
    assert "there is no page" in result.content[0].text
    assert "root:" not in result.content[0].text


def test_what_a_page_says_comes_back_as_it_is_and_changes_nothing(village):
    async def conversation(client):
        read = await client.call_tool("read", {"page_id": "../../etc/passwd"})
        hostile = await client.call_tool("read", {"page_id": "closing", "section": "full"})
        wrong = await client.call_tool("search", {"query": "x" * 5000})
        many = await client.call_tool("search", {"query": "mill", "top_k": 10**6})
        late = await client.call_tool("ask", {"question": " "})
        return read.structured_content["text"], hostile.structured_content["text"], wrong, many, late

    read, hostile, *refused = talk(f"{village.url}/mcp", conversation)
    assert (read, hostile) == (HOSTILE["../../etc/passwd"][1], HOSTILE["closing"][1])
    assert all(each.is_error for each in refused)


def test_mcp_needs_the_same_keys(village, tiny_model_dir, tmp_path):
    key = add_key(tmp_path / "keys.json", "alice")

    async def search(client):
        return await client.call_tool("ask", {"question": "When was Alder Mill built?"})

    async def with_key(url, headers):
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http)) as c,
        ):
            return await search(c)

    with serve_village(village.folder, tiny_model_dir, keys=Keys(tmp_path / "keys.json")) as locked:
        url = f"{locked.url}/mcp"
        with pytest.raises(BaseExceptionGroup):
            asyncio.run(with_key(url, {}))
        assert not asyncio.run(with_key(url, {"Authorization": f"Bearer {key}"})).is_error
        (answered,) = [line for line in locked.log if "outcome" in line]
        assert (answered["key"], answered["route"]) == ("alice", "/mcp")


def test_the_command_speaks_mcp_over_stdin_and_stdout(trained_run):
    words = ["-c", "from seekling.cli.main import main; main()", "serve", str(trained_run), "--mcp"]

    async def conversation(client):
        tools = await client.list_tools()
        answer = await client.call_tool("ask", {"question": "When was Alder Mill built?"})
        outside = await client.call_tool("read", {"page_id": "../recipe.toml"})
        return len(tools.tools), answer.structured_content["answer"], outside.is_error

    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    assert talk(stdio_client(server), conversation) == (3, "1612", True)
