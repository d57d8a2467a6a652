"""What the listener of a group is told of one of its rows, whichever engine samples it."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from guerdon.types import Rollout
from guerdon_services.rollout.engine import Row, Sampled
from guerdon_services.rollout.engines.stopping import GrowingText
from guerdon_services.runtime.listening import Piece


class Teller:
    """Tells the listener of `row`, which has one, what the row grew by; `version` began it, as far as is known."""

    def __init__(self, row: Row, tokenizer: PreTrainedTokenizerBase, version: int) -> None:
        assert row.listener is not None
        self._listener = row.listener
        self._row = row
        self._version = version
        self._text = GrowingText(tokenizer, row.stop)
        self._told = 0

    @property
    def tokens(self) -> bool:
        """Whether the listener wants tokens, or the whole row at once."""
        return self._listener.tokens

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the row any more; what becomes of it is of no consequence then."""
        return self._listener.gone

    def grew(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """There are further tokens, and the row goes on."""
        if self._listener.tokens:
            self._told += len(token_ids)
            self._tell(token_ids, logprobs, self._text.add(token_ids))

    def ended(self, sampled: Sampled) -> None:
        """The row is complete, with tokens of which nothing was said yet."""
        rollout, self._version = rollout_of(sampled), sampled.version
        if not self._listener.tokens:
            self._tell((), (), "", rollout)
            return
        rest = self._text.rest(sampled.text)
        self._tell(sampled.token_ids[self._told :], sampled.logprobs[self._told :], rest, rollout)

    def _tell(
        self, token_ids: Sequence[int], logprobs: Sequence[float], text: str, rollout: Rollout | None = None
    ) -> None:
        row = self._row
        self._listener.hear(
            Piece(row.number, self._version, row.prompt_ids, token_ids, logprobs, text, rollout)
        )


def rollout_of(sampled: Sampled) -> Rollout:
    """A sampled response as it is given out."""
    return Rollout(
        response=sampled.text,
        token_ids=sampled.token_ids,
        logprobs=sampled.logprobs,
        finish_reason=sampled.finish_reason,
        model_version=sampled.version,
        raw_logprobs=sampled.raw_logprobs,
        last_version=sampled.last_version,
    )
