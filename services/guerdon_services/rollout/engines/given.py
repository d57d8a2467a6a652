"""What was given out of a group before all of it was there, and what that forbids."""

from collections.abc import Mapping, Sequence

from guerdon_services.rollout.engine import Row, Sampled
from guerdon_services.rollout.engines.growing import Growing
from guerdon_services.runtime.scorer import NotReady


class Given:
    """The rows of one call that somebody has heard of, for an engine that may have to begin the call again.

    Once something was given out, no other version may begin the rows that are missing: a group is never mixed, nor
    sampled anew behind the back of whoever has a part of it. Without listeners nothing is given out.
    """

    def __init__(self) -> None:
        self._version: int | None = None
        self._whole: dict[int, Sampled] = {}
        self._half: dict[int, Growing] = {}

    def missing(self, rows: Sequence[Row], version: int) -> dict[int, Row]:
        """The rows that are not complete, by their places; `version` would begin them, or go on with them.

        Raises:
            NotReady: another version began what was given out, or a row was given out half and cannot go on.
        """
        if self._version not in (None, version):
            raise NotReady(
                f"version {version} took over before all of a group that {self._version} began was there"
            )
        for growing in self._half.values():
            growing.check()
        return {place: row for place, row in enumerate(rows) if place not in self._whole}

    def half(self, place: int) -> Growing | None:
        """The row of which a part was given out."""
        return self._half.get(place)

    def begun(self, place: int, growing: Growing) -> None:
        """Tokens of a row are about to be given out; raises as `ended` does."""
        self._check(growing.version)
        self._half[place] = growing

    def ended(self, place: int, sampled: Sampled) -> None:
        """All of a row is about to be given out.

        Raises:
            NotReady: another version began it than the rows that were given out before.
        """
        self._check(sampled.version)
        self._half.pop(place, None)
        self._whole[place] = sampled

    def completed(self, rest: Mapping[int, Sampled]) -> list[Sampled]:
        """All rows in order: those that were given out, and the rest."""
        every = {**self._whole, **rest}
        return [every[place] for place in sorted(every)]

    def _check(self, version: int) -> None:
        if self._version not in (None, version):
            raise NotReady(f"versions {self._version} and {version} began responses of one group")
        self._version = version
