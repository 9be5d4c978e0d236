"""From a model directory to a policy in memory: a causal language model in eval mode and its tokenizer.

torch and transformers are imported inside the functions, so naming this module costs nothing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seekling.cores import use_cores_here
from seekling.errors import ConfigError, MissingExtraError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Dtype = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError)
"""What transformers raises on files that are not what they should be."""


def load_policy(
    path: Path | str, *, dtype: Dtype = "auto", device: Device = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model in eval mode, and its tokenizer, from a directory that `resolve_model` returned.

    For auto see `pick_dtype` and `pick_device`. The tokenizer's padding token differs from its end token: a mask made
    from the padding id must not hide the token that ends every turn.

    Raises:
        ConfigError: there is no such device.
        ModelError: files are missing, damaged, or of a model that transformers does not know.
        MissingExtraError: torch or transformers is not installed.
    """
    tokenizer, model = load_tokenizer(path), load_model(path, dtype=dtype, device=device)
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def load_model(path: Path | str, *, dtype: Dtype = "auto", device: Device = "cpu") -> PreTrainedModel:
    """Load a causal language model without its tokenizer; see `load_policy`."""
    use_transformers()
    place = pick_device(device)
    return load_pretrained("AutoModelForCausalLM", path, dtype=pick_dtype(dtype, place), device=place)


def use_transformers() -> None:
    """Make torch and transformers ready: quiet, and with no more threads than there are processors for them.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    for package in ("torch", "transformers", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"running a model needs {package}: pip install 'seekling[train]'")
    import transformers

    transformers.utils.logging.disable_progress_bar()
    use_cores_here()


def load_pretrained(
    kind: str, path: Path | str, *, dtype: Dtype = "float32", device: Device = "auto", may_lack: str = ""
) -> PreTrainedModel:
    """Load a model of one of transformers' classes, such as AutoModel, in eval mode; all its weights must be there.

    Those whose name holds `may_lack` may be missing, and are not used.

    Raises:
        ModelError: files are missing, damaged, or of a model that transformers does not know.
    """
    import torch
    import transformers
    from safetensors import SafetensorError

    try:
        model, loaded = getattr(transformers, kind).from_pretrained(
            str(path),
            dtype=torch.bfloat16 if dtype == "bfloat16" else torch.float32,
            local_files_only=True,
            output_loading_info=True,
        )
    except (*_UNREADABLE, SafetensorError) as error:
        raise ModelError(f"cannot load a model from {path}: {_first_line(error)}") from error
    missing = sorted(key for key in loaded["missing_keys"] if not may_lack or may_lack not in key)
    if missing:
        raise ModelError(
            f"{path} lacks {len(missing)} weights of its own architecture, such as {missing[0]}; "
            "they would be random: the directory is damaged, or of another kind of model"
        )
    ready: PreTrainedModel = model.to(pick_device(device)).eval()
    return ready


def load_tokenizer(path: Path | str, *, pads_with_own: bool = True) -> PreTrainedTokenizerBase:
    """Load the tokenizer in a model's directory; its padding token may have to be its own, see `load_policy`.

    Raises:
        ModelError: there is none, or it is damaged.
    """
    use_transformers()
    import transformers

    try:
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
            str(path), local_files_only=True
        )
    except _UNREADABLE as error:
        raise ModelError(f"cannot load a tokenizer from {path}: {_first_line(error)}") from error
    if pads_with_own:
        _ensure_padding(tokenizer, path)
    return tokenizer


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def pick_device(device: Device) -> Literal["cpu", "cuda"]:
    """Return what `auto` means here: the first NVIDIA GPU, where torch sees one.

    Raises:
        ConfigError: cuda, and torch sees no GPU.
    """
    if device == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device == "auto":
        return "cpu"
    reason = "sees no NVIDIA GPU" if torch.version.cuda else "was built without CUDA"
    raise ConfigError(f'model.device = "cuda", but torch {torch.__version__} {reason}; give model.device=cpu or auto')


def pick_dtype(dtype: Dtype, device: Device = "cpu") -> Literal["float32", "bfloat16"]:
    """Return the arithmetic that `auto` means on a device: bfloat16 where the hardware has it, else float32."""
    if dtype != "auto":
        return dtype
    import torch

    if pick_device(device) == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if cpu_has_bfloat16() else "float32"


def cpu_has_bfloat16() -> bool:
    """Whether torch uses the processor's bfloat16 products, which oneDNN may leave out (ONEDNN_MAX_CPU_ISA)."""
    import torch

    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False  # macOS: bfloat16 matrix products are not faster there in torch's CPU kernels
    if {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags) or not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _ensure_padding(tokenizer: PreTrainedTokenizerBase, path: Path | str) -> None:
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {path} names no end token (eos_token), so no turn could end")
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id != tokenizer.eos_token_id:
        return
    taken = {tokenizer.eos_token, tokenizer.bos_token}
    # Unknown first: byte-level tokenizers never produce it, so nothing real is ever masked.
    candidates = [tokenizer.unk_token, "<|endoftext|>", *tokenizer.all_special_tokens]
    vocabulary = tokenizer.get_vocab()
    for token in candidates:
        if isinstance(token, str) and token not in taken and token in vocabulary:
            tokenizer.pad_token = token
            return
    raise ModelError(
        f"the tokenizer of {path} has no special token to pad with besides its end token {tokenizer.eos_token!r}; "
        "set pad_token in its tokenizer_config.json to another token"
    )
