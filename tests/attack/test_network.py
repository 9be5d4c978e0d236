"""Cases 35-37: a program reaches no network."""

from __future__ import annotations

import pytest

from tests.attack.arena import Arena


def test_no_tcp_connection_to_the_host(arena: Arena):
    result = arena.attack(f"import socket\nprint(socket.create_connection(('127.0.0.1', {arena.port}), 1))")
    assert (result.outcome, result.stdout) == ("error", "")


@pytest.mark.parametrize(
    "make",
    [
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp}))",
        "socket.socket(socket.AF_INET6, socket.SOCK_STREAM)",
        "socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)",
        "socket.socket(socket.AF_UNIX).bind('\\0abstract')",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.socketpair()",
        "socket.socket(fileno=3).sendmsg([b'x'])",
        "socket.socket(fileno=3).getpeername()",
    ],
)
def test_no_socket_of_any_kind(arena: Arena, make: str):
    result = arena.attack(f"import socket\nprint({make.format(udp=arena.udp_port)})")
    assert (result.outcome, result.stdout) == ("error", "")


def test_no_name_can_be_looked_up(arena: Arena):
    result = arena.attack("import socket\nprint(socket.getaddrinfo('localhost', 80))")
    assert (result.outcome, result.stdout) in (("error", ""), ("crashed", ""))
