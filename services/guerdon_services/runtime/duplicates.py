"""Which samples of one request are the same, so that a deterministic scorer judges them once."""

import hashlib
from collections.abc import Sequence

from pydantic_core import PydanticSerializationError

from guerdon.types import Sample
from guerdon_services.runtime.validation import BadItem

#: Indices of samples that are the same, in order; the first stands for all.
Places = list[list[int]]


def by_response(samples: Sequence[Sample | BadItem]) -> Places | None:
    """The samples by their responses, which is cheap to tell; None where no two are the same."""
    first: dict[str | None, list[int]] = {}
    places: Places = []
    for index, sample in enumerate(samples):
        if isinstance(sample, BadItem):
            places.append([index])
            continue
        place = first.get(sample.response)
        if place is None:
            place = first[sample.response] = []
            places.append(place)
        place.append(index)
    return places if len(places) < len(samples) else None


def by_all(samples: Sequence[Sample | BadItem], alike: Places) -> Places:
    """The samples of `alike` places by all that they are but their ids."""
    places: Places = []
    for candidates in alike:
        if len(candidates) == 1:
            places.append(candidates)
            continue
        found: dict[bytes, list[int]] = {}
        for index in candidates:
            found.setdefault(_digest(samples[index], index), []).append(index)
        places += found.values()
    return places


def _digest(sample: Sample | BadItem, index: int) -> bytes:
    """Of the JSON text: to Python 1, 1.0 and true are equal, to a scorer they are not."""
    try:
        assert isinstance(sample, Sample)
        # What was not given stays apart from null.
        text = sample.model_dump_json(exclude={"id"}, exclude_unset=True)
    except PydanticSerializationError:  # text that is no Unicode is like nothing else
        return str(index).encode()
    return hashlib.blake2b(text.encode(), digest_size=32).digest()
