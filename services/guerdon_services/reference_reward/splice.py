"""Puts a reference answer in place of the one a response gives, as text and as token ids.

RLPR (arXiv:2506.18254): `… <answer> REF </answer>`, with the response's own white space after the tag, scored on
the tokens that overlap REF. VeriFree (arXiv:2505.21493): `… <answer` + `> \\boxed{REF} </answer>`, scored on all of
the second part. VeriFree's boundary stands before `>`: letters and `>` never share a token, whereas `>` does share
one with a backslash or a newline. Sampled ids are kept up to that boundary; only what follows is tokenised anew.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from transformers import PreTrainedTokenizerBase

from guerdon_services import models

_OPEN, _CLOSE = "<answer>", "</answer>"
# `<answers` is a word of the response, not the tag.
_VERIFREE_TAG = re.compile(r"<answer(?![\w-])")


class NoAnswer(Exception):
    """The response has no place for a reference: a real outcome of the policy, worth 0. The message says why."""


@dataclass(frozen=True)
class Splice:
    """Response text with a reference in it.

    `pieces` are tokenised separately and concatenated; `kept` characters are the response's own;
    the tokens that overlap the characters `start` to `end` are scored.
    """

    pieces: tuple[str, ...]
    kept: int
    start: int
    end: int

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class Tokenised:
    """The ids of a splice; those from `first` to before `last` are scored, the first `sampled` are the policy's."""

    ids: tuple[int, ...]
    first: int
    last: int
    sampled: int


def rlpr(response: str, reference: str, *, require_think: bool = False, end: str = "") -> Splice:
    """RLPR's text, followed by `end` (the tokenizer's end token, which is not scored).

    Raises:
        NoAnswer: not exactly one <answer>, nothing after it, or (`require_think`) not one pair of think tags.
    """
    for tag in (_OPEN, "<think>", "</think>") if require_think else (_OPEN,):
        if response.count(tag) != 1:
            raise NoAnswer(f"the response has {response.count(tag)} {tag} tags, not one")
    before, _, after = response.partition(_OPEN)
    answer = after.partition(_CLOSE)[0]
    if not answer.strip():
        raise NoAnswer("the answer of the response is blank")
    space = answer[: len(answer) - len(answer.lstrip())] or " "
    start = len(before) + len(_OPEN) + len(space)
    text = f"{before}{_OPEN}{space}{reference} {_CLOSE}{end}"
    return Splice((text,), len(before) + len(_OPEN) - 1, start, start + len(reference))


def rlpr_without_reasoning(reference: str) -> Splice:
    """RLPR's baseline: the reference directly after the prompt, between spaces and without tags."""
    return Splice((f" {reference} ",), 0, 1, 1 + len(reference))


def verifree(response: str, reference: str) -> Splice:
    """VeriFree's text; the first tag of the response counts.

    Raises:
        NoAnswer: there is no tag.
    """
    tag = _VERIFREE_TAG.search(response)
    if tag is None:
        raise NoAnswer("the response has no <answer> tag")
    think, answer = response[: tag.end()], _verifree_answer(reference)
    return Splice((think, answer), len(think), len(think), len(think) + len(answer))


def verifree_without_reasoning(reference: str) -> Splice:
    """The same answer part directly after the prompt; the paper has no such baseline."""
    return verifree("<answer", reference)


def _verifree_answer(reference: str) -> str:
    return f"> \\boxed{{{reference}}} {_CLOSE}"


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse tokenizers whose ids for a piece of text depend on its standing at the beginning.

    Raises:
        ValueError: it puts a space before every text, as that of Llama 2 does, reports no offsets, or has no tokens
            for the tags.
    """
    if not tokenizer.is_fast:
        raise ValueError("reference rewards need a fast tokenizer, which reports offsets")
    try:
        tokens = tokenizer.tokenize(f">a {_CLOSE}")
    except Exception as error:  # tokenizers raise whatever they like over text that they do not take
        raise ValueError(f"the tokenizer has no tokens for {_CLOSE}: {error}") from error
    # The marks of a space in metaspace (sentencepiece) and byte-level vocabularies.
    if any(token.startswith(("▁", "Ġ")) for token in tokens[:1]):
        raise ValueError(
            "the tokenizer puts a space before every text: a response cannot be tokenised in parts"
        )


def response_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The text of sampled ids and the ids themselves, without end or padding tokens at their end."""
    kept = list(ids)
    while kept and kept[-1] in tokenizer.all_special_ids:
        kept.pop()
    return _decode(tokenizer, kept), tuple(kept)


def tokenise(
    tokenizer: PreTrainedTokenizerBase, splice: Splice, sampled_ids: Sequence[int] = ()
) -> Tokenised:
    """The ids of a splice. With `sampled_ids`, whose text its kept part must begin with, they are used as they are.

    A sampled token that crosses the end of the kept part is tokenised anew.

    Raises:
        Unscorable: the tokenizer refuses the text.
    """
    count, characters = _sampled_prefix(tokenizer, sampled_ids, splice)
    ids: list[int] = list(sampled_ids[:count])
    offsets: list[tuple[int, int]] = [(0, 0)] * count
    position = 0
    for piece in splice.pieces:
        begin = max(position, characters)
        text = piece[begin - position :]
        position += len(piece)
        with models.refusals("response or references"):
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids += cast(list[int], encoded["input_ids"])
        pairs = cast(list[tuple[int, int]], encoded["offset_mapping"])
        offsets += [(begin + start, begin + end) for start, end in pairs]
    first, last = overlapping(offsets, splice.start, splice.end)
    return Tokenised(tuple(ids), first, last, count)


def overlapping(offsets: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Half-open range of the tokens whose characters overlap `start` to `end`; (0, 0) when none does."""
    hits = [index for index, (begin, stop) in enumerate(offsets) if begin < end and stop > start]
    return (hits[0], hits[-1] + 1) if hits else (0, 0)


def _sampled_prefix(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], splice: Splice
) -> tuple[int, int]:
    """How many sampled ids lie within the kept part, and how many characters they stand for."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high + 1) // 2
        if len(_decode(tokenizer, ids[:middle])) <= splice.kept:
            low = middle
        else:
            high = middle - 1
    # A character of several tokens may have been cut: its first bytes decode to something else.
    while low and not splice.text.startswith(_decode(tokenizer, ids[:low])):
        low -= 1
    return low, len(_decode(tokenizer, ids[:low]))


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return cast(str, text)
