"""Scores of references without any reasoning: whose they are, and those that were computed before.

RLPR computes them once, with the initial policy (`fixed`); `refreshed` ones are those of the weights that score the
response. A remembered score is what computing it again would give, to rounding: forgetting costs time only.
"""

from array import array
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from guerdon import weights
from guerdon.functional import Aggregation
from guerdon_services import models
from guerdon_services.scoring import ScoredSequence, check_head


class Remembered:
    """A bounded memory of scores under one set of weights; the ones not asked for the longest go first.

    Prompt, reference and template all stand in the ids, so these, temperature and aggregation are the key.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._scores: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._scores)

    def get(self, sequence: ScoredSequence, temperature: float, aggregation: Aggregation) -> float | None:
        """The score, or None when it has to be computed."""
        key = _key(sequence, temperature, aggregation)
        score = self._scores.get(key)
        if score is not None:
            self._scores.move_to_end(key)
        return score

    def put(
        self, sequence: ScoredSequence, temperature: float, aggregation: Aggregation, score: float
    ) -> None:
        """Remember a score."""
        self._scores[_key(sequence, temperature, aggregation)] = score
        while len(self._scores) > self._size:
            self._scores.popitem(last=False)

    def clear(self) -> None:
        """Forget everything: the weights are others now."""
        self._scores.clear()


def _key(sequence: ScoredSequence, temperature: float, aggregation: Aggregation) -> bytes:
    digest = blake2b(digest_size=24)
    digest.update(f"{aggregation} {temperature!r} {len(sequence.prompt_ids)} ".encode())
    digest.update(array("q", [*sequence.prompt_ids, *sequence.response_ids]).tobytes())
    return digest.digest()


class BaseModel:
    """The model of `baseline: fixed`, and its version: that of a weights folder, 0 for any other."""

    def __init__(
        self, folder: Path, version: int | None, policy: PreTrainedTokenizerBase, *, device: str
    ) -> None:
        """Load it.

        Raises:
            FileNotFoundError: there is no such model, or no such version of it.
            ValueError: its vocabulary is not that of `policy`, or it cannot be scored.
        """
        path, self.version = _find(folder, version)
        loaded = models.load(path, device=device)
        if loaded.tokenizer.get_vocab() != policy.get_vocab():
            raise ValueError(f"base_model: {folder} and the model that scores have different vocabularies")
        check_head(loaded.model)
        self.model = loaded.model


def _find(folder: Path, version: int | None) -> tuple[Path, int]:
    if version is None:
        latest = weights.latest(folder)
        return (latest.path, latest.version) if latest else (folder, 0)
    kept = {one.version: one.path for one in weights.published(folder)}
    if version not in kept:
        raise FileNotFoundError(f"base_version: {folder} has no version {version}; it has {sorted(kept)}")
    return kept[version], version
