"""The sides: guerdon and its peers, each a context manager that gives a function from a case to an answer.

Their packages are imported on entry, so that a side's process holds nothing of the others, and importing can be timed.
"""

import importlib
import importlib.util
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from peers.cases import Case

Options = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a side says: `right` only for a clear yes; `method` is what decided, where the side tells."""

    right: bool
    status: str = "ok"
    method: str = ""


Judge = Callable[[Case], Answer]
Side = Callable[[Options], AbstractContextManager[Judge]]


@contextmanager
def guerdon(options: Options) -> Generator[Judge]:
    """Our service without its transport; `options` are its start-up settings."""
    from guerdon.types import Sample
    from guerdon_services.math.service import MathOptions, MathScorer, MathSettings
    from guerdon_services.runtime.scorer import ScoreJob

    scorer = MathScorer(MathSettings(**options))
    scorer.open()
    boxed, lenient = MathOptions(extraction="last_box"), MathOptions(extraction="lenient")

    def judge(case: Case) -> Answer:
        sample = Sample(response=case.response, references=case.references)
        [result] = scorer.score([ScoreJob(sample, boxed if case.bare else lenient)])
        method = (result.verdict.method or "") if result.verdict else ""
        return Answer(result.value == 1.0, result.status.value, method)

    try:
        yield judge
    finally:
        scorer.close()


@contextmanager
def math_verify(options: Options) -> Generator[Judge]:
    """Math-Verify with its defaults, its own time limits included; a reference is given in a box."""
    peer: Any = importlib.import_module("math_verify")

    def judge(case: Case) -> Answer:
        answer = peer.parse(case.response)
        golds = (peer.parse(f"\\boxed{{{reference}}}") for reference in case.references)
        return Answer(any(bool(peer.verify(gold, answer)) for gold in golds))

    yield judge


@contextmanager
def math_verify_trl(options: Options) -> Generator[Judge]:
    """Math-Verify as `accuracy_reward` of TRL 1.16.0 calls it: LaTeX only, boxes first, nothing malformed mended.

    A reference stands between dollars; one that cannot be read gives None there, which is no 1 here.
    """
    peer: Any = importlib.import_module("math_verify")
    latex: Any = importlib.import_module("latex2sympy2_extended")
    config = peer.LatexExtractionConfig(
        normalization_config=latex.NormalizationConfig(units=True),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )

    def judge(case: Case) -> Answer:
        answer = peer.parse(case.response, extraction_config=[config], extraction_mode="first_match")
        golds = (peer.parse(f"${_without_dollars(reference)}$") for reference in case.references)
        return Answer(any(bool(gold) and bool(peer.verify(gold, answer)) for gold in golds))

    yield judge


@contextmanager
def verl_strings(options: Options) -> Generator[Judge]:
    """verl's string grader `math_reward`, loaded from `options["file"]` alone: the package needs an ML stack.

    References stand without dollars, which it does not take off.
    """
    spec = importlib.util.spec_from_file_location("verl_math_reward", options["file"])
    if spec is None or spec.loader is None:
        raise ImportError(f"no module at {options['file']}")
    peer: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)

    def judge(case: Case) -> Answer:
        golds = map(_without_dollars, case.references)
        return Answer(any(peer.compute_score(case.response, gold) == 1.0 for gold in golds))

    yield judge


def _without_dollars(reference: str) -> str:
    return reference.replace("$", "").strip()


SIDES: dict[str, Side] = {
    "guerdon": guerdon,
    "math-verify": math_verify,
    "math-verify-trl": math_verify_trl,
    "verl-strings": verl_strings,
}
