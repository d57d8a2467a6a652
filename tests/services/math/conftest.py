"""One math service for all tests that only ask it questions."""

from collections.abc import Callable, Iterator

import pytest

from guerdon.types import Result, Sample
from guerdon_services.math.extraction.extract import Mode
from guerdon_services.math.service import MathOptions, MathScorer, MathSettings
from guerdon_services.runtime.scorer import ScoreJob

Judge = Callable[..., Result]


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """Scores one response against references."""
    scorer = MathScorer(MathSettings(workers=1, time_limit_s=20))
    scorer.open()

    def ask(response: str, *references: str, extraction: Mode = "last_box") -> Result:
        sample = Sample(response=response, references=list(references))
        return scorer.score([ScoreJob(sample, MathOptions(extraction=extraction))])[0]

    yield ask
    scorer.close()
