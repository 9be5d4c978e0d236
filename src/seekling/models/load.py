"""From a model directory to a policy in memory: a causal language model in eval mode and its tokenizer.

torch and transformers are imported inside the functions, so naming this module costs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from seekling.cores import use_cores_here
from seekling.errors import ConfigError, MissingExtraError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Dtype = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]


def load_policy(
    path: Path | str, *, dtype: Dtype = "auto", device: Device = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer from a local directory.

    Args:
        path: a directory that `resolve_model` returned.
        dtype: of the weights in memory. auto is what `pick_dtype` picks for the device.
        device: where the weights go. auto is what `pick_device` picks for this machine.

    Returns:
        The model in eval mode and the tokenizer, whose padding token differs from its end token: a mask
        made from the padding id must not hide the token that ends every turn.

    Raises:
        ConfigError: there is no such device.
        ModelError: files are missing, damaged, or of a model that transformers does not know.
        MissingExtraError: torch or transformers is not installed.
    """
    tokenizer, model = load_tokenizer(path), load_model(path, dtype=dtype, device=device)
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def load_tokenizer(path: Path | str) -> PreTrainedTokenizerBase:
    """Load the tokenizer alone; see `load_policy`."""
    with _told(path):
        import transformers

        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
            str(path), local_files_only=True
        )
    _ensure_padding(tokenizer, path)
    return tokenizer


def load_model(path: Path | str, *, dtype: Dtype = "auto", device: Device = "cpu") -> PreTrainedModel:
    """Load the model alone; see `load_policy`."""
    with _told(path):
        import torch
        import transformers

        use_cores_here()
        place = pick_device(device)
        transformers.utils.logging.disable_progress_bar()
        # transformers' annotations do not say that output_loading_info makes the result a pair.
        model, loaded = cast(
            "tuple[PreTrainedModel, dict[str, set[str]]]",
            transformers.AutoModelForCausalLM.from_pretrained(
                str(path),
                dtype=torch.bfloat16 if pick_dtype(dtype, place) == "bfloat16" else torch.float32,
                local_files_only=True,
                output_loading_info=True,
            ),
        )
    if loaded["missing_keys"]:
        missing = sorted(loaded["missing_keys"])
        raise ModelError(
            f"{path} lacks {len(missing)} weights of its own architecture, such as {missing[0]}; "
            "they would be random: the directory is damaged, or not a causal language model"
        )
    model.to(place)  # type: ignore[arg-type]  # transformers' annotation lacks it
    model.eval()
    return model


@contextlib.contextmanager
def _told(path: Path | str) -> Iterator[None]:
    """What is missing and what transformers fails with, as errors for people."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
        from safetensors import SafetensorError
    except ImportError as error:
        raise MissingExtraError(f"running a model needs {error.name}: pip install 'seekling[train]'") from None
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"cannot load a language model from {path}: {reason}") from error


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
    """Return the arithmetic that `auto` means on a device: bfloat16 where the processor or the GPU has it.

    Without hardware support bfloat16 is emulated and slower than float32.
    """
    if dtype != "auto":
        return dtype
    import torch

    if pick_device(device) == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if cpu_has_bfloat16() else "float32"


def cpu_has_bfloat16() -> bool:
    """Tell whether torch uses bfloat16 dot products of the processor (AVX512-BF16, AMX, or ARM's BF16 extension).

    oneDNN multiplies matrices for torch, and may have been told to leave them out (ONEDNN_MAX_CPU_ISA).
    """
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
