"""`seekling export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from seekling.errors import ConfigError


def command(
    run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write; must not exist.")] = None,
    gguf: Annotated[Path | None, typer.Option(help="GGUF file to write, for llama.cpp; must not exist.")] = None,
    bits: Annotated[int, typer.Option(help="Of the GGUF file's weights: 16, 32, or 8 (Q8_0).")] = 16,
    push: Annotated[
        str, typer.Option(metavar="OWNER/NAME", help="Repository to push folder and GGUF file to; made when missing.")
    ] = "",
    private: Annotated[bool, typer.Option("--private", help="Make the repository private, when it is made.")] = False,
    adapter: Annotated[bool, typer.Option("--adapter", help="The LoRA adapter alone, in PEFT's layout.")] = False,
    policy: Annotated[
        str, typer.Option(help="best, rl, sft, or a training state such as state-rl-20; default: best, or newest.")
    ] = "",
) -> None:
    """Write a run's policy as a folder that other libraries load.

    transformers, PEFT and vLLM do; its README.md is a model card with the run's figures. Also as a GGUF file, which
    llama.cpp loads, and to a model hub: HF_TOKEN is the key to it, and HF_ENDPOINT names another than huggingface.co.
    """
    from seekling.pipeline.export import package_run

    if bits not in (8, 16, 32):
        raise ConfigError(f"--bits is 8, 16 or 32, not {bits}")
    package_run(
        run,
        out=out,
        gguf=gguf,
        bits=cast("Literal[8, 16, 32]", bits),
        push=push,
        is_private=private,
        policy=policy,
        is_adapter=adapter,
        log=typer.echo,
    )
