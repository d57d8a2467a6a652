"""A question, in which order a run asks them, and with which seeds.

Order and seeds are functions of the run's seed: no generator has a state that a checkpoint would have to carry, and a
position in the stream says it all.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from guerdon.types import ChatMessage, CodeTask


@dataclass(frozen=True)
class Question:
    """One prompt with what its scorer needs: references, metadata or tests."""

    id: str
    prompt: str | list[ChatMessage]
    references: list[str]
    metadata: dict[str, JsonValue] | None = None
    code: CodeTask | None = None


class PromptStream:
    """The questions in an order shuffled anew each epoch, without end."""

    def __init__(self, questions: Sequence[Question], seed: int) -> None:
        if not questions:
            raise ValueError("data holds no question")
        self._questions = questions
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def at(self, position: int) -> Question:
        """The question at a position; fast for positions of the same epoch as the one before."""
        epoch, place = divmod(position, len(self._questions))
        if epoch != self._epoch:
            self._order = list(range(len(self._questions)))
            random.Random(f"guerdon-epoch-{self._seed}-{epoch}").shuffle(self._order)
            self._epoch = epoch
        return self._questions[self._order[place]]


def sampling_seed(run_seed: int, step: int, question_id: str, position: int) -> int:
    """The seed of one group's sampling, in [0, 2^63).

    A request that is repeated after a failure carries the same seed, so that a failure costs time and nothing else.
    """
    text = f"{run_seed}/{step}/{question_id}/{position}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
