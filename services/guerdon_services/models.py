"""Causal language models for services: load one from a Hugging Face folder, encode a sample, follow published weights.

Everything is fp32: GSPO's clip range (3e-4) is below the spacing of bf16 log-probs.
"""

import hashlib
import json
import os
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, cast

import structlog
import torch
from pydantic import BeforeValidator
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from guerdon import weights
from guerdon.mirrors import Follower
from guerdon.stores import is_url
from guerdon.types import ChatMessage, ModelVersion, Prompt, Sample, VersionsResponse
from guerdon_services.runtime.scorer import NotReady, Unscorable

_log = structlog.get_logger(__name__)

#: Characters that are tokenised whatever the context: an unknown word of any length may be one token.
_ALWAYS_TOKENISED = 100_000


class WeightsMismatch(Exception):
    """A weights folder does not hold exactly the tensors of the model that should take them."""


class HalfRead(Exception):
    """Some tensors of a model were replaced and others were not: it must not answer."""


@dataclass(frozen=True)
class LanguageModel:
    """A causal model in evaluation mode and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def vocabulary_size(self) -> int:
        """Number of rows of the input embedding; ids from here on cannot be embedded."""
        return cast(nn.Embedding, self.model.get_input_embeddings()).num_embeddings

    @property
    def context_length(self) -> int | None:
        """The longest sequence the model was built for, in tokens; None when its configuration names none."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)


def load(folder: Path, *, device: str = "cpu") -> LanguageModel:
    """Load model (fp32, evaluation mode) and tokenizer from a Hugging Face folder, without any download.

    Raises:
        FileNotFoundError: `folder` holds no config.json.
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"no model in {folder}: it holds no config.json")
    model = cast(
        PreTrainedModel,
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True),
    )
    cast(nn.Module, model).to(device).eval()
    return LanguageModel(model, load_tokenizer(folder))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face folder, as its files describe it.

    AutoTokenizer goes by the model's architecture first: beside a Qwen2 it puts Qwen's own pre-tokeniser into
    any tokenizer. One that names the generic class is taken as its tokenizer.json says.
    """
    configuration = folder / "tokenizer_config.json"
    named = json.loads(configuration.read_text()).get("tokenizer_class") if configuration.is_file() else None
    generic = named in ("TokenizersBackend", "PreTrainedTokenizerFast")
    return (PreTrainedTokenizerFast if generic else AutoTokenizer).from_pretrained(
        folder, local_files_only=True
    )


def set_threads(threads: int) -> None:
    """Let torch use `threads` CPU threads in this process; on a shared host more than one costs CPU."""
    torch.set_num_threads(threads)


def read_weights(model: PreTrainedModel, folder: Path) -> None:
    """Copy the safetensors of `folder` into `model`, after checking that all of them fit.

    Raises:
        WeightsMismatch: a tensor is missing, unknown, or of another shape; the model is unchanged.
        SafetensorError, OSError: a file is torn or missing; the model is unchanged.
        HalfRead: reading failed in the middle.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsMismatch(f"no safetensors file in {folder}")
    # With tied weights several names share one tensor, and the file holds only one of them.
    targets = {name: tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
    targets |= {name: tensor for name, tensor in model.named_buffers() if name in model.state_dict()}
    handles = [safe_open(file, framework="pt") for file in files]
    found: set[int] = set()
    for handle in handles:
        for name in handle.keys():  # noqa: SIM118  (not a mapping)
            shape = tuple(handle.get_slice(name).get_shape())
            if name not in targets or shape != tuple(targets[name].shape):
                raise WeightsMismatch(f"{folder}: the model has no tensor {name!r} of shape {shape}")
            found.add(id(targets[name]))
    missing = [name for name, tensor in targets.items() if id(tensor) not in found]
    if missing:
        raise WeightsMismatch(f"{folder} lacks {missing[0]!r} and {len(missing) - 1} more tensors")
    try:
        with torch.no_grad():
            for handle in handles:
                for name in handle.keys():  # noqa: SIM118
                    targets[name].copy_(handle.get_tensor(name))
    except Exception as error:
        raise HalfRead(f"{folder}: {error}") from error


def kept_versions(folder: Path) -> list[ModelVersion]:
    """What a weights folder holds, oldest first; a version that is just being removed is left out."""
    return [
        ModelVersion(version=one.version, path=str(one.path), created_unix_s=identity[-1] / 1e9)
        for one in weights.published(folder)
        if (identity := weights.identity(one)) is not None
    ]


def _location(given: object) -> object:
    return Path(given) if isinstance(given, str) and not is_url(given) else given


#: Setting: a weights folder, or the URL of one (`guerdon.stores`).
WeightsLocation = Annotated[Path | str, BeforeValidator(_location)]


def weights_cache(url: str) -> Path:
    """The folder that versions from a URL are downloaded to; GUERDON_CACHE_DIR moves it to another disk."""
    cache = os.environ.get("GUERDON_CACHE_DIR") or Path.home() / ".cache" / "guerdon"
    return Path(cache) / "weights" / hashlib.sha256(url.encode()).hexdigest()[:32]


class FollowedModel:
    """A model that follows a weights folder; until something is published there it is the initial one, version 0.

    `folder` is a plain Hugging Face folder, or itself a weights folder with versions. `weights_dir` is the
    folder to follow or the URL of one, by default `folder`. A version that cannot be read leaves the old one
    serving; versions at a URL are downloaded in the background, and taken up once they are complete.

    Raises:
        StoreError, OSError: nothing is known of the versions at the URL.
    """

    def __init__(self, folder: Path, weights_dir: Path | str | None = None, *, device: str = "cpu") -> None:
        self._downloads: Follower | None = None
        if isinstance(weights_dir, str):
            url, weights_dir = weights_dir, weights_cache(weights_dir)
            self._downloads = Follower(url, weights_dir)
        self._followed = weights_dir or folder
        first = weights.latest(self._followed)
        # Before loading: what is published anew meanwhile must be found to differ.
        self._loaded = weights.identity(first)
        self.language_model = load(first.path if first else folder, device=device)
        self.version = first.version if first else 0
        #: The folder that the weights came from.
        self.path = first.path if first else folder
        self._refused: tuple[int, ...] | None = None
        self._half_read = False
        self._error = ""

    def close(self) -> None:
        """Download no more."""
        if self._downloads is not None:
            self._downloads.close()

    @property
    def model(self) -> PreTrainedModel:
        """The module; the same object in every version."""
        return self.language_model.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the first version loaded."""
        return self.language_model.tokenizer

    def versions(self) -> VersionsResponse:
        """The version that is loaded, and those in the folder that is followed."""
        return VersionsResponse(current=self.version, versions=kept_versions(self._followed))

    def refresh(self) -> bool:
        """Take up the latest published version, if it is another one; call before each batch.

        Raises:
            NotReady: reading broke off half-way; the next call tries again.
        """
        taken_up = self._take_up()
        if self._half_read:
            raise NotReady("the weights are half read; they will be read again")
        return taken_up

    def _take_up(self) -> bool:
        try:
            latest = weights.latest(self._followed)
            identity = weights.identity(latest)
        except (ValueError, OSError) as error:
            self._warn("unknown", error)
            return False
        if latest is None or identity is None or identity == self._refused:
            return False
        if identity == self._loaded and not self._half_read:
            return False
        try:
            read_weights(self.model, latest.path)
        except HalfRead:
            self._half_read = True
            _log.exception("weights half read", version=latest.version)
            return False
        except (WeightsMismatch, SafetensorError, OSError) as error:
            self._warn(str(latest.version), error)
            if not isinstance(error, OSError):
                self._refused = identity  # damaged for good, whereas a file system may recover
            return False
        self.version, self._loaded, self._half_read = latest.version, identity, False
        self.path = latest.path
        self._error = ""
        _log.info("weights taken up", version=latest.version)
        return True

    def _warn(self, version: str, error: Exception) -> None:
        """Say it once: the next look is a fraction of a second away."""
        if str(error) != self._error:
            _log.warning("weights refused", version=version, serving=self.version, error=str(error))
        self._error = str(error)

    def wait_for(self, version: int, timeout_s: float) -> bool:
        """Refresh until at least `version` is loaded; False when it did not come in time."""
        deadline = time.monotonic() + timeout_s
        self.refresh()
        while self.version < version and time.monotonic() < deadline:
            time.sleep(0.02)
            self.refresh()
        return self.version >= version


@contextmanager
def refusals(field: str) -> Generator[None]:
    """Tokenizers and chat templates raise whatever they like over text that they do not take: the sample's fault.

    Raises:
        Unscorable: names `field` and says what the tokenizer said.
    """
    try:
        yield
    except (Unscorable, MemoryError):
        raise
    except Exception as error:
        raise Unscorable(f"{field}: the tokenizer refuses it: {error}") from error


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt | None,
    prompt_token_ids: Sequence[int] = (),
    *,
    chat_template: str | None = None,
    context: int | None = None,
) -> list[int]:
    """The ids of a prompt: those given win; text gets the tokenizer's special tokens, chat its template.

    Text that cannot fit a `context` of so many tokens is refused before it is tokenised.

    Raises:
        Unscorable: there is no prompt, nothing to render chat messages with, or the tokenizer refuses it.
    """
    if prompt_token_ids:
        return list(prompt_token_ids)
    if prompt is None:
        raise Unscorable("prompt: missing; give prompt or prompt_token_ids")
    check_characters(tokenizer, context, "prompt", len(_words(prompt)))
    with refusals("prompt"):
        if isinstance(prompt, str):
            ids = cast(list[int], tokenizer(prompt)["input_ids"])
        else:
            text = _render(tokenizer, prompt, chat_template)
            ids = cast(list[int], tokenizer(text, add_special_tokens=False)["input_ids"])
    if not ids:
        raise Unscorable("prompt: empty; the first token of a response needs one before it")
    return ids


def _words(prompt: Prompt) -> str:
    """All that somebody wrote in a prompt, roles included: their text is anybody's too."""
    if isinstance(prompt, str):
        return prompt
    return "".join(message.role + message.content for message in prompt)


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: list[ChatMessage], chat_template: str | None
) -> str:
    if chat_template is None and tokenizer.chat_template is None:
        raise Unscorable("prompt: chat messages need a chat template, and the tokenizer has none")
    rendered = tokenizer.apply_chat_template(
        [{"role": message.role, "content": message.content} for message in messages],
        chat_template=chat_template,
        tokenize=False,
        add_generation_prompt=True,
    )
    return cast(str, rendered)


def encode_response(
    tokenizer: PreTrainedTokenizerBase, sample: Sample, *, context: int | None = None
) -> list[int]:
    """The ids of a response: the sampled ones win over its text; an empty text has none. `context` as above.

    Raises:
        Unscorable: the sample has no response, or the tokenizer refuses it.
    """
    if sample.response_token_ids:
        return list(sample.response_token_ids)
    if sample.response is None:
        raise Unscorable("response: missing; give response or response_token_ids")
    check_characters(tokenizer, context, "response", len(sample.response))
    with refusals("response"):
        return cast(list[int], tokenizer(sample.response, add_special_tokens=False)["input_ids"])


def check_ids(language_model: LanguageModel, field: str, ids: Sequence[int]) -> None:
    """Refuse ids that the model cannot embed.

    Raises:
        Unscorable: names `field`, the index and the id.
    """
    size = language_model.vocabulary_size
    for index, token in enumerate(ids):
        if not 0 <= token < size:
            raise Unscorable(f"{field}[{index}]: token id {token} is outside the vocabulary of {size}")


def check_length(language_model: LanguageModel, field: str, prompt_tokens: int, response_tokens: int) -> None:
    """Refuse a sequence that is longer than the model's context.

    Raises:
        Unscorable: names `field` and both lengths.
    """
    limit = language_model.context_length
    if limit is not None and prompt_tokens > limit:
        raise Unscorable(f"prompt: {prompt_tokens} tokens are more than the model's context of {limit}")
    if limit is not None and prompt_tokens + response_tokens > limit:
        raise Unscorable(
            f"{field}: {prompt_tokens} prompt and {response_tokens} response tokens are more than "
            f"the model's context of {limit}"
        )


def check_characters(
    tokenizer: PreTrainedTokenizerBase, context: int | None, field: str, characters: int
) -> None:
    """Refuse text that is too long for a context even in the longest tokens: megabytes take a tokenizer minutes.

    Raises:
        Unscorable: names `field`.
    """
    if characters <= _ALWAYS_TOKENISED or context is None:
        return
    if characters > context * _longest_token(tokenizer):
        raise Unscorable(
            f"{field}: {characters} characters are more than the model's context of {context} tokens"
        )


@lru_cache(maxsize=8)
def _longest_token(tokenizer: PreTrainedTokenizerBase) -> int:
    vocabulary = cast(dict[str, int], tokenizer.get_vocab())
    return max(map(len, vocabulary))


def approximate_tokens(sample: Sample) -> int:
    """About how many tokens a sample has, without tokenising it: its ids, or one per three characters of text."""
    prompt_tokens = len(sample.prompt_token_ids) or len(_words(sample.prompt or "")) // 3 + 1
    response_tokens = len(sample.response_token_ids) or len(sample.response or "") // 3 + 1
    return prompt_tokens + response_tokens
