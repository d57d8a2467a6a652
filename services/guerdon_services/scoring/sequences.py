"""What is scored: token ids, and what their logits are divided by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

#: What logits may be divided by: quotients and their gradients stay within fp32.
Temperature = Annotated[float, Field(ge=1e-9, le=1e9)]


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
