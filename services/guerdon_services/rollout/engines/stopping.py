"""Where a response ends: at a token, or because of what it says; and what of its text is certain before it does."""

import re
from collections.abc import Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

#: Tokens decoded beyond the longest stop string, so that a match never begins at the edge of the window.
_MARGIN = 4
#: What bytes that are no UTF-8 read as, half a character among them.
_NO_TEXT = "\ufffd"
#: A token that is one byte, in vocabularies that fall back on bytes.
_BYTE = re.compile("<0x[0-9A-F]{2}>")


class StopStrings:
    """Looks for the stop strings of one row in what it has sampled so far, and finds each at the token where vLLM does.

    Those that the first `ignored` tokens hold entirely do not count. What a token says counts once it is known: not
    while the text ends with half a character.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], *, ignored: int = 0) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ignored = ignored
        # A token that is not special is at least one byte of text, so no match is longer than this many tokens.
        self._window = max((len(text.encode()) for text in stop), default=0) + _MARGIN
        added = tokenizer.added_tokens_decoder if stop else {}
        self._silent = frozenset(token for token, what in added.items() if what.special)
        #: The tokens that say something, how many of all have been taken, and how many of these looked through.
        self._telling: list[int] = []
        self._taken = self._read = 0

    def cut(self, token_ids: Sequence[int]) -> str | None:
        """The text before the first stop string, or None while there is none; `token_ids` grow from call to call."""
        if not self._stop:
            return None
        self._telling += [token for token in token_ids[self._taken :] if token not in self._silent]
        self._taken = len(token_ids)
        recent = decode(self._tokenizer, self._telling[-self._window :])
        if self._taken <= self._ignored or recent.endswith(_NO_TEXT):
            return None
        unread, self._read = len(self._telling) - self._read, len(self._telling)
        if unread > 1:
            recent = decode(self._tokenizer, self._telling[-self._window - unread :])
        if self._first(recent) is None:
            return None
        text = decode(self._tokenizer, token_ids)
        first = self._first(text, len(self._known(token_ids[: self._ignored])))
        return None if first is None else text[:first]

    def _known(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens without those at the end of which nothing is known yet."""
        for size in range(len(token_ids), 0, -1):
            text = decode(self._tokenizer, token_ids[:size])
            if not text.endswith(_NO_TEXT):
                return text
        return ""

    def _first(self, text: str, before: int = 0) -> int | None:
        """Where the first stop string begins that ends after `before` characters."""
        starts = (text.find(stop, max(0, before - len(stop) + 1)) for stop in self._stop)
        return min((start for start in starts if start >= 0), default=None)


class GrowingText:
    """The text of one response while it is sampled.

    Held back is what may still change or be cut off: half a character, a run of byte tokens, the beginning of a stop
    string. Text is read in windows that begin a little before what is new, since what a token says may depend on the
    one before it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._window: list[int] = []
        #: How many tokens of the window were read before, and how many it must have to be read again.
        self._read = 0
        self._worth_reading = 0
        self._held = ""
        self._given: list[str] = []

    def add(self, token_ids: Sequence[int]) -> str:
        """What is certain after these further tokens, and was not before."""
        self._window += token_ids
        self._held += self._new()
        certain = len(self._held) - self._unsure()
        text, self._held = self._held[:certain], self._held[certain:]
        self._given.append(text)
        return text

    def rest(self, whole: str) -> str:
        """What is missing of the whole response."""
        given = "".join(self._given)
        return whole[len(given) :] if whole.startswith(given) else ""

    def _new(self) -> str:
        size = len(self._window)
        if size < self._worth_reading:
            return ""
        # Where nothing becomes certain for long, reading all of it at every token would take longer and longer.
        self._worth_reading = size + size // 8
        known = decode(self._tokenizer, self._window[: self._read])
        text = decode(self._tokenizer, self._window)
        if text == known and known:
            del self._window[self._read :]  # special tokens
            self._worth_reading = 0
        if len(text) <= len(known) or text.endswith(_NO_TEXT) or self._ends_with_byte():
            return ""
        self._window = self._window[self._read :]
        self._read = len(self._window)
        self._worth_reading = 0
        return text[len(known) :]

    def _ends_with_byte(self) -> bool:
        """Whether the last token that says something is a byte: the next one may change what it says."""
        for token in reversed(self._window):
            named = self._tokenizer.convert_ids_to_tokens(token)
            if isinstance(named, str) and _BYTE.fullmatch(named):
                return True
            if decode(self._tokenizer, [token]):
                return False
        return False

    def _unsure(self) -> int:
        """Characters at the end with which a stop string begins."""
        held = self._held
        sizes = (
            size
            for stop in self._stop
            for size in range(min(len(stop) - 1, len(held)), 0, -1)
            if held.endswith(stop[:size])
        )
        return max(sizes, default=0)


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Text of sampled ids, without special tokens and without any cleaning."""
    text = tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def end_tokens(named: int | list[int] | None, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids that complete a response: those that the model's configuration names, else the tokenizer's."""
    ids = cast(int | None, tokenizer.eos_token_id) if named is None else named
    return frozenset([ids] if isinstance(ids, int) else ids or ())
