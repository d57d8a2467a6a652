"""The section on correcting for an engine that computes other log-probabilities than the trainer."""

from typing import Annotated, Literal

from pydantic import Field

from guerdon_trainer.config.base import Section


class ImportanceConfig(Section):
    """See `losses.importance`: truncated importance sampling."""

    #: token: a weight for each token. sequence: one for each response, of all its tokens.
    level: Literal["token", "sequence"] = "token"
    #: The largest weight.
    cap: Annotated[float, Field(ge=1)] = 2.0
