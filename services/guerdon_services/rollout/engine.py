"""What runs the policy: the seam between the rollout service and an inference library.

An engine is one file in `engines/`; the service knows this protocol and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from transformers import PreTrainedTokenizerBase

from guerdon.types import VersionsResponse


@dataclass(frozen=True)
class Row:
    """One response to sample. Rows of one batch may differ in everything."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    #: 0 is greedy.
    temperature: float
    top_p: float
    #: 0 is off.
    top_k: int
    stop: tuple[str, ...]
    #: Decides the sample, whatever else is in the batch.
    seed: int


@dataclass(frozen=True)
class Sampled:
    """One sampled response.

    `token_ids` is all that was sampled, the end token or the stop string's tokens included; `text` ends before
    them. `logprobs` (nats, fp32) belong to `token_ids` under the whole distribution at the row's temperature:
    top-p and top-k restrict what is drawn, not what is reported, so that a trainer can recompute them. Greedy
    rows report temperature 1.
    """

    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: Literal["stop", "length"]


class Engine(Protocol):
    """A policy that samples and follows published weights. Called from one thread at a time."""

    @property
    def version(self) -> int:
        """The version of the weights that answer now."""
        ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Token ids from here on are refused."""
        ...

    @property
    def context_length(self) -> int | None:
        """The longest prompt and response together, in tokens; None when there is no limit."""
        ...

    def versions(self) -> VersionsResponse:
        """The version that answers now, and those that can still be read; called from any thread."""
        ...

    def refresh(self) -> None:
        """Take up the latest published weights, if there are newer ones."""
        ...

    def generate(self, rows: Sequence[Row]) -> list[Sampled]:
        """One response per row, in order. The prompt and `max_new_tokens` fit into the context."""
        ...

    def close(self) -> None:
        """Release the model."""
        ...
