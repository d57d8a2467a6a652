"""Where a response ends: at a token, or because of what it says."""

from collections.abc import Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

#: Tokens decoded beyond the longest stop string, so that a match never begins at the edge of the window.
_MARGIN = 4


class StopStrings:
    """Looks for the stop strings of one row in what it has sampled so far."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        # A token is at least one byte of text, so no match is longer than this many tokens.
        self._window = max((len(text.encode()) for text in stop), default=0) + _MARGIN

    def cut(self, token_ids: Sequence[int]) -> str | None:
        """The text before the first stop string, or None while there is none."""
        if not self._stop or self._first(decode(self._tokenizer, token_ids[-self._window :])) is None:
            return None
        text = decode(self._tokenizer, token_ids)
        first = self._first(text)
        return None if first is None else text[:first]

    def _first(self, text: str) -> int | None:
        return min((found for stop in self._stop if (found := text.find(stop)) >= 0), default=None)


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Text of sampled ids, without special tokens and without any cleaning."""
    text = tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def end_tokens(named: int | list[int] | None, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids that complete a response: those that the model's configuration names, else the tokenizer's."""
    ids = cast(int | None, tokenizer.eos_token_id) if named is None else named
    return frozenset([ids] if isinstance(ids, int) else ids or ())
