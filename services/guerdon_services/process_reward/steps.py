"""Where the reasoning steps of a response end, in tokens: text is cut at a separator and mapped to token ids."""

from collections.abc import Collection, Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

#: Tokens that can share one character: UTF-8 has at most 4 bytes, and a few more belong to bad byte sequences.
_LONGEST_CHARACTER = 8
_UNFINISHED = "\ufffd"


def step_ends(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], separator: str) -> list[int]:
    """Index of the last token of every step, in order; the last one ends the response. Empty without tokens.

    A step ends with the token that holds the last character of a separator. Whitespace, separators and the
    tokenizer's special tokens make no step of their own: they belong to the step before them, or to the first.
    """
    special = set(cast(list[int], tokenizer.all_special_ids))
    blank = {index for index, token in enumerate(ids) if token in special}
    return ends_in(token_texts(tokenizer, ids), separator, blank=blank)


def ends_in(texts: Sequence[str], separator: str, *, blank: Collection[int] = ()) -> list[int]:
    """The same for the texts of the tokens, of which those numbered in `blank` hold no reasoning."""
    if not texts:
        return []
    text = "".join(texts)
    owners = [index for index, part in enumerate(texts) for _ in part]
    ends: list[int] = []
    start = 0
    while start <= len(text):
        found = text.find(separator, start)
        stop = len(text) if found < 0 else found
        last = len(texts) - 1 if found < 0 else owners[found + len(separator) - 1]
        says_something = any(not text[at].isspace() and owners[at] not in blank for at in range(start, stop))
        if ends and (not says_something or ends[-1] == last):
            ends[-1] = last
        elif says_something or found < 0:
            ends.append(last)
        if found < 0:
            break
        start = found + len(separator)
    return ends


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text that each token adds to the decoded response; a character of several tokens counts to the last.

    Where tokens decode differently alone and after others, as parts of a character do, a short window at a time
    is decoded.
    """
    alone = {token: _decode(tokenizer, [token]) for token in set(ids)}
    texts = [alone[token] for token in ids]
    return texts if "".join(texts) == _decode(tokenizer, ids) else _texts_in_windows(tokenizer, ids)


def _texts_in_windows(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    texts: list[str] = []
    begin, read = 0, 0  # the window starts at `begin`; the texts of the tokens before `read` are settled
    before = ""  # what ids[begin:read] decode to
    for end in range(1, len(ids) + 1):
        window = _decode(tokenizer, ids[begin:end])
        added = window[len(before) :]
        pending = added.endswith(_UNFINISHED) and end - read < _LONGEST_CHARACTER and end < len(ids)
        texts.append("" if pending else added)
        if not pending:
            begin, read = read, end
            before = _decode(tokenizer, ids[begin:read])
    return texts


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return cast(
        str, tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )
