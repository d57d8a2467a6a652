"""What is scored: token ids."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ScoredSequence:
    """A prompt (at least one token) and the response whose tokens are to be scored."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and response."""
        return (*self.prompt_ids, *self.response_ids)
