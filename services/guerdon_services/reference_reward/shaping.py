"""What becomes of r - r', as a request may ask for it; RLPR's shaping functions (arXiv:2506.18254, released code)."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from guerdon.functional import leaky_shaped, sigmoid_shaped, threshold_shaped

#: Rewards lie in [0, 1]; a threshold beyond it would leave none.
Threshold = Annotated[float, Field(ge=0, le=1)]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Identity(_Shape):
    """As it is: negative where the reasoning made the reference less probable."""

    kind: Literal["identity"]

    def __call__(self, x: float) -> float:
        return x


class Clip(_Shape):
    """Held in [0, 1]: the paper's."""

    kind: Literal["clip"] = "clip"

    def __call__(self, x: float) -> float:
        return min(max(x, 0.0), 1.0)


class Cut(_Shape):
    """0 below the threshold, as it is from there on. The released recipe's is 0."""

    kind: Literal["threshold"]
    threshold: Threshold = 0.0

    def __call__(self, x: float) -> float:
        return threshold_shaped(x, self.threshold)


class Leaky(_Shape):
    """Multiplied by `slope` below the threshold."""

    kind: Literal["leaky"]
    threshold: Threshold
    slope: Annotated[float, Field(ge=0, le=1)] = 0.01

    def __call__(self, x: float) -> float:
        return leaky_shaped(x, self.threshold, slope=self.slope)


class Sigmoid(_Shape):
    """A curve from 0 to 1 around 1/2; 0 where the curve is below `threshold`."""

    kind: Literal["sigmoid"]
    #: The curve's logit runs from minus this to this.
    steepness: Annotated[float, Field(gt=0, le=100)] = 6.0
    threshold: Threshold = 0.0

    def __call__(self, x: float) -> float:
        return sigmoid_shaped(x, self.steepness, threshold=self.threshold)


Shaping = Annotated[Identity | Clip | Cut | Leaky | Sigmoid, Field(discriminator="kind")]
