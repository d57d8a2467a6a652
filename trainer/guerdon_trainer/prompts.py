"""In which order a run asks its questions, and with which seeds: functions of the run's seed and nothing else.

No generator has a state that a checkpoint would have to carry: a position in the stream says it all.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence

from guerdon_trainer.data import Question


class PromptStream:
    """The questions in an order shuffled anew each epoch, without end."""

    def __init__(self, questions: Sequence[Question], seed: int) -> None:
        if not questions:
            raise ValueError("data holds no question")
        self._questions = questions
        self._seed = seed

    def start_at(self, position: int) -> Iterator[tuple[int, Question]]:
        """Positions and questions from `position` on."""
        size = len(self._questions)
        while True:
            epoch = position // size
            order = list(range(size))
            random.Random(f"guerdon-epoch-{self._seed}-{epoch}").shuffle(order)
            for index in order[position % size :]:
                yield position, self._questions[index]
                position += 1


def sampling_seed(run_seed: int, step: int, question_id: str, position: int) -> int:
    """The seed of one group's sampling, in [0, 2^63).

    A request that is repeated after a failure carries the same seed, so that a failure costs time and nothing else.
    """
    text = f"{run_seed}/{step}/{question_id}/{position}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
