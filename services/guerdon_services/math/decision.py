"""What a comparison of one answer with one reference says: the seam between comparison, worker and service."""

from dataclasses import dataclass
from typing import Literal

Method = Literal["string", "rational", "symbolic", "numeric", "none"]


class UnreadableReference(ValueError):
    """The reference is empty, or nothing that an answer could be compared with."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an answer equals a reference, how that was found, and a clause that says why.

    `answer` and `reference` are both in the one spelling that all ways of writing them share.
    """

    equal: bool
    method: Method
    reason: str = ""
    answer: str = ""
    reference: str = ""
