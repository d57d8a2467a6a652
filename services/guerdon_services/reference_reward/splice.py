"""Puts a reference answer in place of the one a response gives, as text and as token ids.

RLPR (arXiv:2506.18254): `… <answer> REF </answer>`, with the response's own white space after the tag, scored on
the tokens that overlap REF. VeriFree (arXiv:2505.21493): `… <answer` + `> \\boxed{REF} </answer>`, scored on all of
the second part. VeriFree's boundary stands before `>`: letters and `>` never share a token, whereas `>` does share
one with a backslash or a newline. Custom: the response up to a marker, then any text. Sampled ids are kept up to
that boundary; only what follows is tokenised anew.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from transformers import PreTrainedTokenizerBase

from guerdon_services import models
from guerdon_services.reference_reward.settings import PLACE, CustomTemplate
from guerdon_services.runtime.scorer import Unscorable

_OPEN, _CLOSE = "<answer>", "</answer>"
# `<answers` is a word of the response, not the tag.
_VERIFREE_TAG = re.compile(r"<answer(?![\w-])")
#: Tokens that one character may be cut into, and a few more.
_CHARACTER_TOKENS = 8


class NoAnswer(Exception):
    """The response has no place for a reference: a real outcome of the policy. The message says why."""


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


def check_think_tags(response: str) -> None:
    """Refuse a response without exactly one pair of think tags.

    Raises:
        NoAnswer: there is none, or more than one.
    """
    for tag in ("<think>", "</think>"):
        _only(response, tag)


def rlpr(response: str, reference: str, *, end: str = "") -> Splice:
    """RLPR's text, followed by `end` (the tokenizer's end token, which is not scored).

    White space around the reference is left out: the response's own stands there, and it might share a token with
    the tag.

    Raises:
        NoAnswer: not exactly one <answer>, or nothing after it.
    """
    _only(response, _OPEN)
    before, _, after = response.partition(_OPEN)
    answer = after.partition(_CLOSE)[0]
    if not answer.strip():
        raise NoAnswer("the answer of the response is blank")
    reference = reference.strip()
    space = answer[: len(answer) - len(answer.lstrip())] or " "
    start = len(before) + len(_OPEN) + len(space)
    text = f"{before}{_OPEN}{space}{reference} {_CLOSE}{end}"
    return Splice((text,), len(before) + len(_OPEN) - 1, start, start + len(reference))


def rlpr_without_reasoning(reference: str) -> Splice:
    """RLPR's baseline: the reference directly after the prompt, between spaces and without tags."""
    reference = reference.strip()
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


def custom(response: str, reference: str, template: CustomTemplate) -> Splice:
    """The response up to the template's marker, then its text; `check_boundary` says whether that can be tokenised.

    Where only the reference is scored, white space around it is left out, as in `rlpr`.

    Raises:
        NoAnswer: the response lacks the marker, or has it twice where only one is allowed.
    """
    # A marker that ends in a letter ends a word: <answer is not found in <answers.
    ending = r"(?![\w-])" if re.search(r"\w\Z", template.marker) else ""
    found = [match.end() for match in re.finditer(re.escape(template.marker) + ending, response)]
    if not found:
        raise NoAnswer(f"the response has no {template.marker!r}, the marker of the answer")
    if template.occurrence == "only" and len(found) > 1:
        raise NoAnswer(f"the response has {len(found)} markers {template.marker!r}, not one")
    kept = response[: found[-1] if template.occurrence == "last" else found[0]]
    before, _, after = template.text.partition(PLACE)
    if template.scored == "text":
        text = before + reference + after
        return Splice((kept, text), len(kept), len(kept), len(kept) + len(text))
    reference = reference.strip()
    start = len(kept) + len(before)
    return Splice((kept, before + reference + after), len(kept), start, start + len(reference))


def custom_without_reasoning(reference: str, template: CustomTemplate) -> Splice:
    """Marker and text directly after the prompt."""
    return custom(template.marker, reference, template)


def _only(response: str, tag: str) -> None:
    if response.count(tag) != 1:
        raise NoAnswer(f"the response has {response.count(tag)} {tag} tags, not one")


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


def check_boundary(tokenizer: PreTrainedTokenizerBase, template: CustomTemplate, reference: str) -> None:
    """Refuse a custom template whose text would begin in the middle of a token if the policy wrote it.

    Raises:
        Unscorable: names the token.
    """
    made = custom_without_reasoning(reference, template)
    for begin, end in _encode(tokenizer, made.text)[1]:
        if begin < made.kept < end:
            token = made.text[begin:end]
            raise Unscorable(
                f"options.custom_template.text: the tokenizer makes one token, {token!r}, of the end of the marker and "
                "the beginning of the text; let the text begin with a space, or end the marker earlier"
            )


def response_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The text of sampled ids and the ids themselves, without end or padding tokens at their end."""
    kept = list(ids)
    while kept and kept[-1] in tokenizer.all_special_ids:
        kept.pop()
    return _decode(tokenizer, kept), tuple(kept)


def tokenise(
    tokenizer: PreTrainedTokenizerBase, splice: Splice, sampled_ids: tuple[int, ...] = ()
) -> Tokenised:
    """The ids of a splice. With `sampled_ids`, whose text its kept part must begin with, they are used as they are.

    A sampled token that crosses the end of the kept part is tokenised anew.

    Raises:
        Unscorable: the tokenizer refuses the text, or a scored token reaches into text that is not scored.
    """
    count, characters = sampled_prefix(tokenizer, sampled_ids, splice.text[: splice.kept])
    ids: list[int] = list(sampled_ids[:count])
    offsets: list[tuple[int, int]] = [(0, 0)] * count
    position = 0
    for piece in splice.pieces:
        begin = max(position, characters)
        text = piece[begin - position :]
        position += len(piece)
        piece_ids, pairs = _encode(tokenizer, text)
        ids += piece_ids
        offsets += [(begin + start, begin + end) for start, end in pairs]
    first, last = overlapping(offsets, splice.start, splice.end)
    if first < last:
        _check_edges(splice, offsets[first][0], offsets[last - 1][1])
    return Tokenised(tuple(ids), first, last, count)


def _check_edges(splice: Splice, begin: int, end: int) -> None:
    """White space may share a token with the reference, as ` 7` does; a letter or a brace of the template may not."""
    text = splice.text
    for beside in (text[begin : splice.start], text[splice.end : end]):
        if beside.strip():
            raise Unscorable(
                f"references: the tokenizer joins {beside!r}, which is not scored, with the reference in one token; "
                "put a space between them, or score all of the text"
            )


def overlapping(offsets: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Half-open range of the tokens whose characters overlap `start` to `end`; (0, 0) when none does."""
    hits = [index for index, (begin, stop) in enumerate(offsets) if begin < end and stop > start]
    return (hits[0], hits[-1] + 1) if hits else (0, 0)


@lru_cache(maxsize=16)  # the references of a response follow each other
def sampled_prefix(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...], kept: str) -> tuple[int, int]:
    """How many sampled ids lie within the kept text, and how many characters they stand for."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high + 1) // 2
        if len(_decode(tokenizer, ids[:middle])) <= len(kept):
            low = middle
        else:
            high = middle - 1
    # A character of several tokens may have been cut: its first bytes decode to something else, and some
    # tokenizers decode them to more characters than all of its bytes.
    for count in range(min(low + _CHARACTER_TOKENS, len(ids)), 0, -1):
        text = _decode(tokenizer, ids[:count])
        if kept.startswith(text):
            return count, len(text)
    return 0, 0


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    with models.refusals("response or references"):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return cast(list[int], encoded["input_ids"]), cast(list[tuple[int, int]], encoded["offset_mapping"])


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return cast(str, text)
