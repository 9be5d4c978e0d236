#!/usr/bin/env bash
# Creates .venv with the pinned packages. Called by `make setup`; safe to run again after it was interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=$(sed -n 's/^torch==//p' constraints.txt)

find_python() {
    for candidate in ${PYTHON:-} python3.12 python3.11 python3.13 python3; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null
        then
            command -v "$candidate"
            return
        fi
    done
    echo "setup: no Python 3.11, 3.12 or 3.13 with the venv module found on PATH." >&2
    echo "       On Debian or Ubuntu: apt-get install python3 python3-venv. Or: make setup PYTHON=/path/to/python" >&2
    exit 1
}

install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "$@"; }

# The rule for torch. A Mac gets the ordinary build, and so does Linux with an NVIDIA driver. On Linux without one the
# ordinary build works too, but drags several GB of CUDA packages along, so the CPU build is tried first: from wherever
# this machine's pip is set up to look, then from PyTorch's own CPU index. --no-deps, so that this index serves torch
# and nothing else; torch's dependencies are pinned and come with the rest.
install_torch() {
    if .venv/bin/python -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$torch_version')" 2>/dev/null; then
        return
    fi
    if [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null 2>&1; then
        echo "setup: torch $torch_version, CPU build"
        if install --no-deps "torch==$torch_version+cpu" 2>/dev/null; then return; fi
        if install --no-deps --retries 1 --timeout 20 --index-url https://download.pytorch.org/whl/cpu \
            "torch==$torch_version+cpu" 2>/dev/null; then return; fi
        echo "setup: the CPU build cannot be had here; installing the ordinary one with its CUDA packages (several GB)"
    fi
    install -c constraints.txt "torch==$torch_version"
}

if ! .venv/bin/python -c 'import sys, pip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
    python=$(find_python)
    echo "setup: .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
fi
install_torch
echo "setup: the other packages"
install -c constraints.txt -e '.[train,dev]'
# The rules of axe-core for the accessibility test. The package that carries them wants a browser driver too, which the
# test does not: hence --no-deps. Without it that test skips.
install --no-deps -c constraints.txt axe-playwright-python || echo "setup: no axe-core; the accessibility test will skip"
.venv/bin/seekling --version
