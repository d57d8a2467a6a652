"""What runs the policy: the seam between the rollout service and an inference library.

An engine is one file in `engines/`; the service knows this protocol and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from transformers import PreTrainedTokenizerBase

from guerdon.types import VersionsResponse
from guerdon_services.runtime.listening import Listener


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
    #: Decides the sample, whatever else is in the batch; None is any.
    seed: int | None
    stop_token_ids: tuple[int, ...] = ()
    #: Tokens less likely than this share of the best one's probability are not drawn; 0 is off.
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    #: 1 is off.
    repetition_penalty: float = 1.0
    #: The first so many tokens are no end token (ignored or not) and no stop token; a stop string that is complete with
    #: them does not count.
    min_new_tokens: int = 0
    ignore_eos: bool = False
    #: Also give log-probs at temperature 1.
    raw_logprobs: bool = False
    #: Who wants to hear of the row while it is sampled, and as which one of its group; see `telling`.
    listener: Listener | None = field(default=None, compare=False, repr=False)
    number: int = field(default=0, compare=False)

    @property
    def truncated(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def penalised(self) -> bool:
        """Whether what was written before changes the logits."""
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1


@dataclass(frozen=True)
class Sampled:
    """One sampled response.

    `token_ids` is all that was sampled, the end token or the stop string's tokens included; `text` ends before
    them. `logprobs` (nats, fp32) belong to `token_ids` under the whole distribution at the row's temperature:
    top-p, top-k, min-p and penalties restrict or move what is drawn, not what is reported, so that a trainer can
    recompute them. Greedy rows report temperature 1. `raw_logprobs` are at temperature 1, where asked for.

    `version` began the response; `last_version` ended it, and is None where the weights stayed the same.
    """

    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: Literal["stop", "length"]
    version: int
    raw_logprobs: list[float] = field(default_factory=list)
    last_version: int | None = None


class Engine(Protocol):
    """A policy that samples and follows published weights.

    `engines.concurrency` says from how many threads at a time it is called. The rows of one call are begun by one
    version: a group is never mixed.
    """

    @property
    def name(self) -> str:
        """The library that runs the policy."""
        ...

    @property
    def state(self) -> str:
        """For people: what serves, and the last update that failed."""
        ...

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

    @property
    def preemptions(self) -> int:
        """How often a response was taken out of memory to make room, and computed anew so far."""
        ...

    def versions(self) -> VersionsResponse:
        """The version that answers now, and those that can still be read; called from any thread."""
        ...

    def refresh(self) -> None:
        """Take up the latest published weights, if there are newer ones."""
        ...

    def generate(self, rows: Sequence[Row]) -> list[Sampled]:
        """One response per row, in order. The prompt and `max_new_tokens` fit into the context.

        Rows with a listener are told of (`telling.Teller`) as they grow; what was told stands, or the call fails.

        Raises:
            NotReady: the engine died and did not come back; the rows may be asked for again.
        """
        ...

    def close(self) -> None:
        """Release the model."""
        ...
