"""Sequences like those of a training step: groups of responses to one prompt, references after several reasonings.

Ids are random and lengths are not: the arithmetic does not depend on what a token says.
"""

import random
from collections.abc import Sequence

from guerdon_services.scoring import ScoredSequence

#: Eight responses from short to long, as a group of a small model has them: with the prompt 2,823 tokens.
PROMPT, RESPONSES = 174, (60, 90, 120, 150, 180, 220, 281, 330)
#: A prompt with four reasonings, after each of which references are scored.
QUESTION, REASONINGS, ANSWER = 140, (60, 120, 180, 240), 10


def process_case(groups: int, vocabulary: int, scale: float = 1.0) -> list[ScoredSequence]:
    """`groups` prompts with eight responses each; `scale` stretches all lengths."""
    ids = _Ids(vocabulary)
    sequences: list[ScoredSequence] = []
    for _ in range(groups):
        prompt = ids.take(PROMPT * scale)
        sequences += [ScoredSequence(prompt, ids.take(length * scale)) for length in RESPONSES]
    return sequences


def reference_case(references: int, vocabulary: int, scale: float = 1.0) -> list[ScoredSequence]:
    """One prompt, four reasonings, and after each of them the same references."""
    ids = _Ids(vocabulary)
    question = ids.take(QUESTION * scale)
    answers = [ids.take(ANSWER) for _ in range(references)]
    reasonings = [ids.take(length * scale) for length in REASONINGS]
    # Reference by reference, as the public code runs them: four rows of a group at a time.
    return [ScoredSequence([*question, *reasoning], answer) for answer in answers for reasoning in reasonings]


def described(sequences: Sequence[ScoredSequence]) -> str:
    """How much there is."""
    return f"{len(sequences)} sequences, {sum(map(len, sequences)):,} tokens"


class _Ids:
    def __init__(self, vocabulary: int) -> None:
        self._random = random.Random(0)
        self._vocabulary = vocabulary

    def take(self, count: float) -> list[int]:
        return [self._random.randrange(3, self._vocabulary) for _ in range(round(count))]
