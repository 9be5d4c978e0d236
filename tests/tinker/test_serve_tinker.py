"""The command that serves the Tinker API, where the SDK is not installed."""

import sys

from tests.commands import seekling


def test_without_the_sdk_the_command_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tinker", None)
    result = seekling("serve", "--tinker")
    assert result.exit_code == 1
    assert "pip install 'seekling[tinker]'" in result.stderr
