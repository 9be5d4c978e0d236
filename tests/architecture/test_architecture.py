"""The shape of the code: who may import whom, where heavy packages live, how long things get, what is documented.

Everything is read from the source with ast; nothing is imported. A new import between rooms, a new boundary or a new
heavy package is a design change: it changes a table here.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import seekling

SRC = Path(seekling.__file__).parent
PATHS = sorted(path for path in SRC.rglob("*.py"))
BASE = {"types", "errors", "config", "client", "files", "compiled", "cores", "text"}

ROOM_IMPORTS = {
    "types": {"errors"},
    "errors": set(),
    "config": {"errors"},
    "client": {"errors", "types"},
    "files": set(),
    "compiled": set(),
    "cores": set(),
    "text": set(),
    "corpus": BASE,
    "kernels": BASE,
    "models": {*BASE, "kernels"},
    "doctor": BASE,
    "reward": BASE,
    "report": {*BASE, "evaluate", "reward"},
    "retrieval": {*BASE, "corpus", "models"},
    "env": {*BASE, "retrieval"},
    "env/sandbox": BASE,
    "rollout": {*BASE, "kernels", "models", "env"},
    "experts": {*BASE, "rollout", "reward", "env"},
    "learn": {*BASE, "kernels", "models", "rollout", "reward"},
    "serve": {*BASE, "corpus", "kernels", "models", "retrieval", "env", "rollout", "evaluate"},
    "evaluate": {*BASE, "corpus", "retrieval", "env", "rollout", "reward"},
    "tinker": {*BASE, "models", "env", "rollout", "learn", "serve"},
    "scale": {*BASE, "models", "retrieval", "env", "rollout", "learn", "serve"},
}
ROOM_IMPORTS["pipeline"] = set(ROOM_IMPORTS)
ROOM_IMPORTS["stacks"] = {*BASE, "retrieval", "env", "rollout", "reward", "serve", "pipeline"}
ROOM_IMPORTS["cli"] = set(ROOM_IMPORTS)
"""What each room may import besides itself, the standard library and numpy."""

HEAVY = {
    "torch": {
        "cores.py",
        "retrieval/local_models.py",
        "kernels",
        "models",
        "doctor",
        "rollout",
        "learn",
        "pipeline",
        "serve",
        "tinker",
        "scale",
    },
    "transformers": {
        "retrieval/local_models.py",
        "models",
        "rollout",
        "learn",
        "pipeline",
        "serve",
        "scale",
        "stacks/verl.py",
    },
    "tokenizers": {"models", "rollout"},
    "safetensors": {"models", "learn", "retrieval/local_models.py", "pipeline", "scale"},
    "peft": {"learn"},
    "gguf": {"models"},
    "numba": {"compiled.py", "kernels"},
    "llvmlite": {"kernels"},
    "vllm": {"rollout/vllm_sampler.py"},
    "ray": {"scale"},
    "huggingface_hub": {"models"},
    "bm25s": {"retrieval"},
    "faiss": {"retrieval/compressed.py"},
    "chromadb": {"retrieval/chroma.py"},
    "httpx": {"retrieval/chroma.py"},
    "Stemmer": {"retrieval"},
    "pyarrow": {"corpus", "stacks/parquet.py"},
    "pypdf": {"corpus"},
    "trafilatura": {"corpus"},
    "pytrec_eval": {"evaluate"},
    "wandb": {"pipeline/trackers.py"},
    "urllib3": {"client.py"},
    "starlette": {"serve", "tinker"},
    "uvicorn": {"serve"},
    "prometheus_client": {"serve"},
    "mcp": {"serve/mcp_server.py"},
    "mcp_types": {"serve/mcp_server.py"},
    "tinker": {"tinker", "scale"},
    "google": {"tinker/wire.py"},
    "verifiers": {"stacks/verifiers.py"},
    "skyrl_gym": {"stacks/skyrl.py"},
    "verl": {"stacks/verl.py"},
}
"""Rooms or files in which a package may be imported at all. Packages in no list may be imported by nobody."""

LOOPS_NAMED = {"rollout/engine/layers.py": "runs a decoder layer in one call of the loop that computes all of it"}
"""file -> why it may import a back end's loops."""

FLOWS = {f"learn/{name}.py" for name in ("rl", "sft", "update")} | {"pipeline/stages.py", "pipeline/guard.py"}
IMPLEMENTATIONS = (
    *(f"seekling.learn.{name}" for name in ("local", "trained", "checkpoint")),
    *(f"seekling.{name}" for name in ("rollout.engine", "rollout.vllm", "scale")),
)
"""Modules that those files do not import."""

LIGHT = {"numpy", "pydantic", "typer", "rich", "seekling"}

BROAD_EXCEPT = {
    "env/tools.py::run_tool": "a tool's failure, whatever it is, is text for the model",
    "env/sandbox/program.py::_call": "the same, for a tool called by a program",
    "env/sandbox/guest/runner.py::Runner._execute": "a model's program may raise anything",
    "env/sandbox/guest/runner.py::Runner._explain": "describing an exception runs the program's own code",
}
"""file::function -> why it may catch every exception without raising it again."""

ANY_IN_SIGNATURE: dict[str, str] = {}
"""file::function -> why its signature may say Any."""

LONG_FUNCTIONS: dict[str, str] = dict.fromkeys(
    ("kernels/amx/attention.py::attend_rows", "kernels/amx/backward.py::_loop"),
    "the compiler must see its loops whole",
)
"""file::function -> why it may be longer than 60 lines."""


def name_of(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def room_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return "env/sandbox" if parts[:2] == ("env", "sandbox") else parts[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_modules(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level and name_of(path).startswith("env/sandbox/guest/"):
                continue  # it runs in a child process that has this folder and not the package
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: imports are absolute in this package"
            module = node.module or ""
            yield module, node.lineno
            if module == "seekling":
                yield from ((f"seekling.{alias.name}", node.lineno) for alias in node.names)


def functions_of(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """Yield dotted name, node, and whether it is public (a public name in a public scope) of every function."""

    def walk(node: ast.AST, prefix: str, is_public: bool):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                visible = is_public and not child.name.startswith("_")
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield name, child, visible
                yield from walk(child, f"{name}.", visible and isinstance(child, ast.ClassDef))
            else:
                yield from walk(child, prefix, is_public)

    yield from walk(tree_of(path), "", True)


def other_rooms(path: Path) -> Iterator[str]:
    """A room imports only the rooms it may."""
    room = room_of(path)
    if room == "__init__":
        return
    for module, line in imported_modules(path):
        package, _, rest = module.partition(".")
        if package != "seekling" or not rest:
            continue
        target = "env/sandbox" if rest.startswith("env.sandbox") else rest.split(".")[0]
        is_own = target == room or (room == "env" and target == "env/sandbox")
        is_allowed = target in ROOM_IMPORTS[room] or (target == "env/sandbox" and "env" in ROOM_IMPORTS[room])
        if target == "__version__" or is_own or is_allowed:
            continue
        allowed = ", ".join(sorted(ROOM_IMPORTS[room])) or "nothing"
        yield f"{line}: {room} may not import {target}; it may import {allowed}"


def heavy_packages(path: Path) -> Iterator[str]:
    """Heavy packages stay in their rooms."""
    for module, line in imported_modules(path):
        package = module.split(".")[0]
        if package in sys.stdlib_module_names or package in LIGHT:
            continue
        allowed = HEAVY.get(package, set())
        if not {room_of(path), room_of(path).split("/")[0], name_of(path)} & allowed:
            yield f"{line}: {package} may only be imported in {sorted(allowed) or 'no room yet'}"


def slow_commands(path: Path) -> Iterator[str]:
    """A command imports its rooms only when it runs."""
    for node in tree_of(path).body if room_of(path) == "cli" else ():
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            package, _, rest = module.partition(".")
            is_own = package == "seekling" and (not rest or rest.split(".")[0] in {*BASE, "cli"})
            if package in HEAVY or (package == "seekling" and not is_own):
                yield f"{node.lineno}: import {module} inside the function"


def long_files(path: Path) -> Iterator[str]:
    """No file is longer than 400 lines."""
    length = len(path.read_text(encoding="utf-8").splitlines())
    if length > 400:
        yield f"{length}: lines"


def long_functions(path: Path) -> Iterator[str]:
    """No function is longer than 60 lines unless it says why."""
    for name, node, _ in functions_of(path):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > 60 and f"{name_of(path)}::{name}" not in LONG_FUNCTIONS:
            yield f"{node.lineno}: {name} has {length} lines"


def missing_docstrings(path: Path) -> Iterator[str]:
    """Every public function and class, and every module, says what it is."""
    tree = tree_of(path)
    if tree.body and not ast.get_docstring(tree):
        yield "1: the file has no docstring"
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
            yield f"{node.lineno}: {node.name} has no docstring"
    for name, function, is_public in functions_of(path):
        if is_public and not ast.get_docstring(function):
            yield f"{function.lineno}: {name} has no docstring"


def broad_excepts(path: Path) -> Iterator[str]:
    """Only listed boundaries catch every exception."""
    for name, function, _ in functions_of(path):
        if f"{name_of(path)}::{name}" in BROAD_EXCEPT:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and catches_everything(node):
                yield f"{node.lineno}: {name} catches every exception"


def catches_everything(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False  # tidies up and lets it pass
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"} for kind in kinds)


def probed_types(path: Path) -> Iterator[str]:
    """Nothing is probed with hasattr, and no public signature says Any."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr":
            yield f"{node.lineno}: hasattr"
    for name, function, is_public in functions_of(path):
        if not is_public or f"{name_of(path)}::{name}" in ANY_IN_SIGNATURE:
            continue
        parts = [function.returns, *(argument.annotation for argument in arguments_of(function))]
        for part in parts:
            words = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)} if part is not None else set()
            if "Any" in words:
                yield f"{function.lineno}: {name} has Any in its signature"


def arguments_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def wide_classes(path: Path) -> Iterator[str]:
    """No section of settings has more than 12 fields, the recipe no more than 16, a class of retrieval than 15."""
    for node in tree_of(path).body if room_of(path) in ("config", "retrieval") else ():
        if isinstance(node, ast.ClassDef):
            num_fields = sum(isinstance(each, ast.AnnAssign) for each in node.body)
            limit = 16 if node.name == "Recipe" else 12 if room_of(path) == "config" else 15
            if num_fields > limit:
                yield f"{node.lineno}: {node.name} has {num_fields} fields, at most {limit} are read at a glance"


def loops_outside_their_room(path: Path) -> Iterator[str]:
    """Outside of kernels/ nobody names a back end's own modules but what plugs them into transformers' layers."""
    if room_of(path) != "kernels" and name_of(path) not in LOOPS_NAMED:
        for module, line in imported_modules(path):
            if module.startswith(("seekling.kernels.vector", "seekling.kernels.amx")):
                yield f"{line}: import the operation from seekling.kernels, not {module}"


def implementations_in_the_flows(path: Path) -> Iterator[str]:
    """What trains, and the stages of a run, know learners and samplers by their Protocols alone."""
    for module, line in imported_modules(path) if name_of(path) in FLOWS else ():
        if module.startswith(IMPLEMENTATIONS):
            yield f"{line}: {module} is an implementation; choose it in pipeline/implementations.py"


RULES = [
    implementations_in_the_flows, loops_outside_their_room, other_rooms, heavy_packages, slow_commands, long_files,
    long_functions, missing_docstrings, broad_excepts, probed_types, wide_classes,
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Callable[[Path], Iterator[str]]):
    broken = [f"{name_of(path)}:{complaint}" for path in PATHS for complaint in rule(path)]
    assert not broken, f"{rule.__doc__}\n" + "\n".join(broken)


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (implementations_in_the_flows, "from seekling.learn.local import LocalLearner"),
        (loops_outside_their_room, "from seekling.kernels.amx import tiles"),
        (other_rooms, "from seekling.learn import learner"),
        (heavy_packages, "import torch"),
        (slow_commands, "import numpy\nfrom seekling.learn import learner"),
        (long_files, "x = 1\n" * 601),
        (long_functions, "def f():\n" + "    x = 1\n" * 80),
        (missing_docstrings, "def f(): ..."),
        (broad_excepts, "def f():\n    try: ...\n    except Exception: ..."),
        (probed_types, "def f(x: Any): ..."),
        (wide_classes, "class A:\n    'A.'\n" + "".join(f"    x{n}: int\n" for n in range(13))),
    ],
)
def test_a_file_that_breaks_a_rule_is_told(rule, source, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SRC", tmp_path)
    path = tmp_path / "cli" / "command.py"
    path.parent.mkdir()
    path.write_text('"""Does something."""\n' + ("X = 1\n" if rule is not other_rooms else "") + source)
    if rule is other_rooms:
        path = path.rename(tmp_path / "corpus.py")
    if rule is implementations_in_the_flows:
        path = path.rename(path.parent / "guard.py")
        monkeypatch.setattr(sys.modules[__name__], "FLOWS", {"cli/guard.py"})
    if rule is wide_classes:
        path = path.rename(tmp_path / "config.py")
    assert len(list(rule(path))) == 1


def test_every_exception_to_a_rule_still_exists():
    known = {f"{name_of(path)}::{name}" for path in PATHS for name, _, _ in functions_of(path)}
    assert {*BROAD_EXCEPT, *LONG_FUNCTIONS, *ANY_IN_SIGNATURE} <= known
