"""From what a sample says to token ids, within the limits of a model."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import cast

from transformers import PreTrainedTokenizerBase

from guerdon.types import ChatMessage, Prompt, Sample
from guerdon_services.models.loading import LanguageModel
from guerdon_services.runtime.scorer import Unscorable

#: Characters that are tokenised whatever the context: an unknown word of any length may be one token.
_ALWAYS_TOKENISED = 100_000


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
