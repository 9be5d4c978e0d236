"""Our environment for verifiers, which looks for it by the name of a top-level module: `vf-eval seekling-env`."""

from seekling.stacks.verifiers import SearchEnv, SearchTaskset, load_environment

__all__ = ["SearchEnv", "SearchTaskset", "load_environment"]
