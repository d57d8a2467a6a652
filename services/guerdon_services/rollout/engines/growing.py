"""A response that somebody listens to while vLLM samples it, over as many lives of the engine as it takes.

What was given out stands. After a death the response goes on from there: prompt and tokens given are the new prompt,
less is left of both limits, and stop strings are looked for here, since they may begin in what was given. Where a draw
depends on more than what was written before (a seed's random numbers, penalties that count the response only) the
response is sampled anew, and has to begin as what was given; what neither can be done for is given up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from guerdon_services.rollout.engine import Row, Sampled
from guerdon_services.rollout.engines.stopping import StopStrings
from guerdon_services.rollout.telling import Teller
from guerdon_services.runtime.scorer import NotReady


@dataclass(frozen=True)
class Tokens:
    """Some tokens and their log-probs (nats)."""

    ids: list[int]
    logprobs: list[float]

    def __add__(self, more: "Tokens") -> "Tokens":
        return Tokens(self.ids + more.ids, self.logprobs + more.logprobs)

    def __getitem__(self, part: slice) -> "Tokens":
        return Tokens(self.ids[part], self.logprobs[part])


@dataclass(frozen=True)
class Ending:
    """How vLLM ended a response; `stop_reason` is the stop string or the end token, `versions` wrote it."""

    tokens: Tokens
    finish_reason: str
    stop_reason: int | str | None
    versions: Sequence[int]


def ending(output: Any, tokens: Tokens | None = None) -> Ending:
    """Of the last output of a response, which has all of its tokens unless they are given."""
    versions = [int(span.version) for span in output.weight_versions or ()]
    return Ending(tokens or tokens_of(output), output.finish_reason, output.stop_reason, versions)


def tokens_of(output: Any) -> Tokens:
    """What an output of vLLM's has."""
    return Tokens(list(output.token_ids), list(output.logprobs.logprobs) if output.token_ids else [])


class Growing:
    """One row and what was given out of its response; `version` began it."""

    def __init__(self, row: Row, tokenizer: PreTrainedTokenizerBase, version: int) -> None:
        self.version = version
        self._row = row
        self._tokenizer = tokenizer
        self._teller = Teller(row, tokenizer, version)
        self._given = Tokens([], [])
        #: What this life of the engine has to say first, and what ends what it says.
        self._repeated: list[int] = []
        self._stop: StopStrings | None = None
        self._goes_on = False
        self._changed = False

    def check(self) -> None:
        """See that it can go on in another life of the engine, which serves the version that began it.

        Raises:
            NotReady: it cannot.
        """
        why = ""
        if self._changed:
            why = "other weights, which are gone, had gone on with it"
        elif not (self._follows_from_text or self._can_be_repeated):
            why = "the penalties depend on what was drawn; a seed would allow to draw it again"
        if why:
            raise NotReady(f"sampling broke off in the middle of a response that was being given out: {why}")

    def begin(self) -> Row:
        """What to ask of an engine now: all of the response, or what is missing of it."""
        row, given = self._row, self._given.ids
        self._repeated, self._stop, self._goes_on = [], None, bool(given)
        if not given:
            return row
        if not self._follows_from_text:
            self._repeated = list(given)
            return row
        self._stop = StopStrings(self._tokenizer, row.stop, ignored=row.min_new_tokens)
        return replace(
            row,
            prompt_ids=(*row.prompt_ids, *given),
            max_new_tokens=row.max_new_tokens - len(given),
            min_new_tokens=max(0, row.min_new_tokens - len(given)),
            stop=(),
        )

    def take(self, output: Any, version: int) -> Tokens | Ending:
        """What an output of vLLM's adds to what was given; where the response ends with it, how. `version` serves.

        Raises:
            NotReady: the response was sampled anew, and is another one.
        """
        new = self._news(tokens_of(output), ended=output.finish_reason in ("stop", "length"))
        size = self._stopped(new.ids, output.stop_reason)
        if size is not None:
            return Ending(self._given + new[:size], "stop", "", (self.version, version))
        if output.finish_reason is not None:
            end = ending(output, self._given + new)
            # This life knows only what it wrote itself.
            return replace(end, versions=(self.version, *end.versions)) if self._goes_on else end
        self._changed = self._changed or version != self.version
        return new

    def give(self, new: Tokens) -> None:
        """Give tokens out."""
        self._given += new
        self._teller.grew(new.ids, new.logprobs)

    @property
    def given_as_it_grows(self) -> bool:
        """Whether the listener wants tokens, or the whole response at once."""
        return self._teller.tokens

    def end(self, sampled: Sampled) -> None:
        """Give out that it is complete."""
        self._teller.ended(sampled)

    @property
    def _follows_from_text(self) -> bool:
        """Whether the next draw depends on nothing but what was written before."""
        row = self._row
        counts = row.presence_penalty or row.frequency_penalty
        return not counts and (row.seed is None or row.temperature == 0)

    @property
    def _can_be_repeated(self) -> bool:
        return self._row.seed is not None or self._row.temperature == 0

    def _news(self, tokens: Tokens, *, ended: bool) -> Tokens:
        """Without what was given in an earlier life."""
        again = tokens.ids[: len(self._repeated)]
        same = again == self._repeated[: len(again)]
        if not same or (ended and len(again) < len(self._repeated)):
            raise NotReady("sampled anew, a response was another one than had been given out in part")
        del self._repeated[: len(again)]
        return tokens[len(again) :]

    def _stopped(self, new: Sequence[int], stop_reason: int | str | None) -> int | None:
        """How many of the new tokens there are up to a stop string, where this life of vLLM does not know of any."""
        if self._stop is None:
            return None
        said = [*self._given.ids, *new]
        # An end token ends the response ahead of what it says.
        last = len(new) - isinstance(stop_reason, int)
        for size in range(1, last + 1):
            if self._stop.cut(said[: len(said) - len(new) + size]) is not None:
                return size
        return None
