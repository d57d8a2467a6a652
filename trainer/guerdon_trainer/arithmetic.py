r"""Sums of single digits written out with running sums: the task a 100k-parameter model learns in seconds.

    prompt      6+0+4=
    response    06;\boxed{10}       the sum after two terms, then the answer after the last

Every sum has two digits, so that each step is one digit-wise addition with or without a carry. The warm-up
teacher is deliberately sloppy: it forgets most carries, which leaves the reward something to teach.
"""

import hashlib
import random
from collections.abc import Sequence
from itertools import product
from typing import Literal

from guerdon_trainer.questions import Question

Split = Literal["train", "held_out"]

MIN_TERMS = 2
#: Eleven nines make 99, the largest sum of two digits.
MAX_TERMS = 11

#: Questions whose hash falls below this share of 256 are never trained on, whatever the seed.
_HELD_OUT_BELOW = 80
#: Up to this many terms all questions are enumerated; beyond, drawing at random rarely meets one twice.
_ENUMERATED_TERMS = 4


def questions(
    size: int, seed: int, *, terms: tuple[int, int] | list[int] = (3, 3), split: Split = "train"
) -> list[Question]:
    """`size` different questions of `split` whose number of terms is uniform in `terms`, both ends included.

    Content decides the split: no question of "held_out" is ever in "train", whatever size and seed.

    Raises:
        ValueError: `terms` is no range within 2..11, or there are fewer than `size` such questions.
    """
    low, high = terms
    if not MIN_TERMS <= low <= high <= MAX_TERMS:
        raise ValueError(f"terms must be a range within {MIN_TERMS}..{MAX_TERMS}, not {tuple(terms)}")
    rng = random.Random(f"guerdon-arithmetic-{split}-{seed}")
    pools = {count: _Pool(count, split, rng) for count in range(low, high + 1)}
    drawn: list[Question] = []
    while len(drawn) < size:
        if not pools:
            raise ValueError(
                f"size is {size}, but only {len(drawn)} {split} questions have {low}..{high} terms"
            )
        count = rng.choice(list(pools))
        digits = pools[count].draw()
        if digits is None:
            del pools[count]
        else:
            drawn.append(_question(digits))
    return drawn


def prompt(digits: Sequence[int]) -> str:
    """How a sum is asked."""
    return "+".join(map(str, digits)) + "="


def solution(digits: Sequence[int], *, forget_carry: float = 0.0, rng: random.Random | None = None) -> str:
    """The response written out in steps; each carry is forgotten with probability `forget_carry`.

    A forgotten carry stays forgotten: later steps go on from the wrong sum, as a careless pupil would.

    Raises:
        ValueError: carries shall be forgotten at random, but `rng` is None.
    """
    if forget_carry and rng is None:
        raise ValueError("rng must be given when forget_carry is not 0")
    sums: list[int] = []
    running = digits[0]
    for digit in digits[1:]:
        total = running + digit
        carries = total // 10 > running // 10
        if carries and rng is not None and rng.random() < forget_carry:
            total -= 10
        running = total
        sums.append(running)
    *steps, answer = (f"{value:02d}" for value in sums)
    return "".join(f"{step};" for step in steps) + rf"\boxed{{{answer}}}"


def held_out(digits: Sequence[int]) -> bool:
    """Whether a sum is kept for evaluation only."""
    return hashlib.sha256(prompt(digits).encode()).digest()[0] < _HELD_OUT_BELOW


def _question(digits: tuple[int, ...]) -> Question:
    text = prompt(digits)
    return Question(
        id=f"arithmetic-{text[:-1]}",
        prompt=text,
        # In the task's own notation: as an answer of the policy, "9" would be one that it never gives.
        references=[f"{sum(digits):02d}"],
        metadata={"digits": list(digits)},
        code=None,
    )


class _Pool:
    """Draws sums of `count` digits that belong to `split`, each at most once."""

    def __init__(self, count: int, split: Split, rng: random.Random) -> None:
        self._count = count
        self._split = split
        self._rng = rng
        self._seen: set[tuple[int, ...]] = set()
        self._all: list[tuple[int, ...]] | None = None
        if count <= _ENUMERATED_TERMS:
            self._all = [digits for digits in product(range(10), repeat=count) if self._belongs(digits)]
            rng.shuffle(self._all)

    def draw(self) -> tuple[int, ...] | None:
        if self._all is not None:
            return self._all.pop() if self._all else None
        while True:
            digits = tuple(self._rng.randrange(10) for _ in range(self._count))
            if digits not in self._seen and self._belongs(digits):
                self._seen.add(digits)
                return digits

    def _belongs(self, digits: tuple[int, ...]) -> bool:
        return held_out(digits) == (self._split == "held_out")
