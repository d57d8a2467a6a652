"""The soft penalty for overlong responses of DAPO (section 3.4): 0, then a line down to -1, then -1."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from guerdon.types import Sample
from guerdon_services.rules.base import Outcome, RuleOptions, response_of
from guerdon_services.runtime.scorer import Unscorable


class LengthOptions(RuleOptions):
    """0 up to `max_length - buffer`, -1 beyond `max_length`, linear between; in characters or response tokens."""

    rule: Literal["length"]
    max_length: Annotated[int, Field(ge=1)]
    buffer: Annotated[int, Field(ge=0)] = 0
    unit: Literal["characters", "tokens"] = "characters"

    @model_validator(mode="after")
    def _buffer_fits(self) -> Self:
        if self.buffer > self.max_length:
            raise ValueError("buffer must not be larger than max_length")
        return self


def judge(options: LengthOptions, sample: Sample) -> Outcome:
    """Measure the response."""
    if options.unit == "characters":
        length = len(response_of(sample))
    elif sample.response_token_ids or sample.response == "":
        length = len(sample.response_token_ids)
    else:
        raise Unscorable("response_token_ids is missing: the rule length counts tokens")
    over = length - (options.max_length - options.buffer)
    if length > options.max_length:
        value = -1.0
    elif over > 0:
        value = -over / options.buffer
    else:
        value = 0.0
    return Outcome(value, f"{length} of at most {options.max_length} {options.unit}")
