"""Reads config and tokenizer of a model folder (`save_pretrained`).

    folder --config_of--> PretrainedConfig            folder --load_tokenizer--> tokenizer with an end token
    folder --weight_map--> which file has which tensor of several files

Invariant: code in a folder is never run. transformers takes seconds to import, so the functions that need it
import it. Not handled here: the weights themselves (swarm.learn.models.model), chat templates and end tokens
of a run (swarm.learn.models.tokenization).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.learn.models import model_limits

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*")
"""File names of a tokenizer's vocabulary; one of them must be there."""

ANYWHERE = (None, "eager", "sdpa")
"""How a config may ask for attention to be computed: by what torch itself has."""

CAUSAL_ANYWAY = ("gpt_neox", "gpt_neox_japanese")
"""Architectures that read forwards, whatever `is_decoder` says in their config."""


class ModelError(ValueError):
    """A model's folder cannot be used as it is, or not with the run's settings; the message suggests a
    remedy."""


def config_of(folder: Path) -> PretrainedConfig:
    """The config of a model folder. Raises ModelError for one that cannot be used, and for an architecture
    that transformers itself does not have."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    path = folder / "config.json"
    kind = _model_type(path)
    MODEL_FOR_CAUSAL_LM_MAPPING.get(CONFIG_MAPPING[kind], None)  # the fork has its code then
    with contextlib.suppress(model_limits.Broken), _limited(f"the config {path}"):
        model_limits.tried(folder)  # a broken file is reported below
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OSError,
        RecursionError,
        StrictDataclassError,
    ) as error:
        said = " ".join(str(error).split())
        raise ModelError(f"{path} cannot be used ({said}): copy the model again") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(
            f"{folder} has a {kind}, which is not a causal language model: take one that writes text"
        )
    if _reads_ahead(config):
        raise ModelError(
            f"{folder} has a {kind} that reads texts in both directions, so that it cannot write"
            ' one: take a causal language model; `"is_decoder": true` in config.json makes one of an encoder'
        )
    return config


def _model_type(path: Path) -> str:
    """The architecture that a config.json names. Raises ModelError as config_of."""
    from transformers import CONFIG_MAPPING, __version__

    folder = path.parent
    try:
        raw = json.loads(path.read_text())
        known = raw.get("model_type") in CONFIG_MAPPING
    except FileNotFoundError as error:
        raise ModelError(
            f"{folder} has no config.json: it is not a model folder; save_pretrained writes one"
        ) from error
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}): copy the model again") from error
    if raw.get("quantization_config"):
        raise ModelError(
            f"the weights in {folder} are quantized already: take the plain model, "
            "which model.training = qlora or peer.engine.quantize will quantize"
        )
    if not known and "auto_map" in raw:
        raise ModelError(
            f"the model in {folder} needs code of its own, which is never run here: "
            f"take a model whose architecture transformers {__version__} has itself"
        )
    if not known:
        raise ModelError(
            f"transformers {__version__} does not know the architecture {raw.get('model_type')!r}"
            f" of {folder}: upgrade transformers, or take another model"
        )
    if (kernel := raw.get("_attn_implementation") or raw.get("attn_implementation")) not in ANYWHERE:
        raise ModelError(
            f"{path} asks for attention by {kernel!r}, which not every peer of a run has: take the entry out,"
            " and each takes what it has"
        )
    return str(raw["model_type"])


def check_size(folder: Path, weights: int) -> None:
    """Raise ModelError where the config in this folder asks for a model that is larger than so many bytes of
    weights may be, or cannot be built."""
    path = folder / "config.json"
    try:
        with _limited(f"the config {path}"):
            model_limits.check_size(folder, weights)
    except model_limits.Broken as error:
        raise ModelError(f"the model in {folder} cannot be loaded: {error}") from error


@contextmanager
def _limited(what: str) -> Iterator[None]:
    """Raise ModelError where the body finds that a file asks for more than it may."""
    try:
        yield
    except model_limits.BeyondLimits as error:
        raise ModelError(f"{what} {error}: it is refused; take another model") from error


def _reads_ahead(config: PretrainedConfig) -> bool:
    """Whether later tokens of a text change a model's output before them, as in BERT and EmbeddingGemma:
    transformers makes a causal language model of those, too."""
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        return True
    encoder = getattr(config, "is_decoder", None) is False and not config.is_encoder_decoder
    return encoder and _asks_whether_decoder(config) and config.model_type not in CAUSAL_ANYWAY


def _asks_whether_decoder(config: PretrainedConfig) -> bool:
    """Whether `is_decoder` is a setting of this architecture: configs of others may have it, too, for example
    `false` in a Llama's, without effect."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    own = any("is_decoder" in vars(kind).get("__annotations__", {}) for kind in type(config).__mro__)
    return own or type(config) in MODEL_FOR_MASKED_LM_MAPPING


def weight_map(folder: Path) -> dict[str, Path] | None:
    """Tensor -> its file, as the index of weights in several files has it; None where there is no index, or
    all are in one file: save_pretrained leaves an older index beside that, and from_pretrained does not read
    it. Raises ModelError for a damaged one."""
    index = folder / "model.safetensors.index.json"
    if not index.exists() or (folder / "model.safetensors").exists():
        return None
    try:
        return {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index} cannot be read ({first_line(error)}): copy the model again") from error


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Raise ModelError where the body finds that this file of weights is damaged or missing."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, FileNotFoundError) as error:
        raise ModelError(
            f"{file} cannot be read ({first_line(error)}): copy the model again; a small text file is a Git"
            " LFS pointer"
        ) from error


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder. Raises ModelError when there is none, or it has no end token."""
    if not any(any(folder.glob(pattern)) for pattern in VOCABULARIES):
        # transformers would make an empty one from the name of the architecture.
        raise ModelError(f"{folder} has no tokenizer: save one there with save_pretrained")
    from transformers import AutoTokenizer

    try:
        with _limited(f"the tokenizer in {folder}"):
            model_limits.tokenizer_tried(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer("1")  # a length that is no number shows in a text alone
    except ModelError:
        raise
    except Exception as error:  # tokenizers raises no other kind, and transformers any for a strange value
        raise ModelError(
            f"{folder} has no tokenizer that can be loaded ({first_line(error)}): save one there"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"the tokenizer in {folder} has no end token: completions could not end; set eos_token in its"
            " config"
        )
    if tokenizer.pad_token_id is None:
        # padding is masked everywhere: which token it is does not matter
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
