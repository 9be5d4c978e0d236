"""The command line in this process."""

from __future__ import annotations

from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from seekling.cli.main import app


def seekling(*words: object, **options: Any) -> Result:
    """Run a command; the result has exit code, stdout and stderr."""
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="seekling", terminal_width=200, **options)
