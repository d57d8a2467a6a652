"""What an evaluation found: accuracy and pass@k with intervals, failures apart, as plain data and as a table."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from guerdon_trainer.evaluation.answers import Answer
from guerdon_trainer.evaluation.benchmark import BenchmarkConfig
from guerdon_trainer.evaluation.estimates import Estimate, accuracy, pass_at


@dataclass(frozen=True)
class Summary:
    """The figures of one evaluation.

    `judged` responses have a verdict; `failed` ones, by service and status, have none and count neither as right nor
    as wrong. `if_failed` is the accuracy with these, and those not asked for yet, all wrong, and all right.
    """

    benchmark: str
    questions: int
    responses_per_question: int
    judged: int
    failed: dict[str, dict[str, int]]
    last_reason: dict[str, str]
    not_asked: int
    accuracy: Estimate | None
    if_failed: tuple[float, float]
    pass_at: dict[int, Estimate | None]
    categories: dict[str, Estimate]
    truncated: int
    mean_tokens: float | None
    confidence: float

    @property
    def complete(self) -> bool:
        """Whether every response got its verdict."""
        return self.judged == self.questions * self.responses_per_question


def summarise(config: BenchmarkConfig, questions: Sequence[str], answers: Iterable[Answer]) -> Summary:
    """The figures of a benchmark's questions (their ids) and the answers there are to them."""
    by_question: dict[str, list[Answer]] = {id: [] for id in questions}
    for answer in answers:
        by_question[answer.question].append(answer)
    everything = [answer for group in by_question.values() for answer in group]
    right, judged = _counts(by_question.values(), config.verifier.correct_at)
    n, confidence = config.sampling.n, config.confidence
    written = [answer.response_tokens for answer in everything if answer.response_tokens is not None]
    return Summary(
        benchmark=config.name,
        questions=len(questions),
        responses_per_question=n,
        judged=sum(judged),
        failed=_failures(everything),
        last_reason={str(answer.failed_at): answer.reason for answer in everything if answer.value is None},
        not_asked=len(questions) * n - len(everything),
        accuracy=accuracy(right, judged, confidence),
        if_failed=(
            sum(right) / (n * len(questions)),
            sum(good + n - count for good, count in zip(right, judged, strict=True)) / (n * len(questions)),
        ),
        pass_at={k: pass_at(right, judged, k, confidence) for k in config.ks},
        categories=_categories(by_question, config),
        truncated=sum(answer.finish_reason == "length" for answer in everything),
        mean_tokens=sum(written) / len(written) if written else None,
        confidence=confidence,
    )


def _counts(groups: Iterable[Sequence[Answer]], correct_at: float) -> tuple[list[int], list[int]]:
    """Right and judged answers of each question."""
    values = [[answer.value for answer in group if answer.value is not None] for group in groups]
    return [sum(value >= correct_at for value in group) for group in values], [len(group) for group in values]


def _failures(answers: Iterable[Answer]) -> dict[str, dict[str, int]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for answer in answers:
        if answer.value is None:
            found[str(answer.failed_at)][answer.status.value] += 1
    return {service: dict(counts) for service, counts in sorted(found.items())}


def _categories(by_question: dict[str, list[Answer]], config: BenchmarkConfig) -> dict[str, Estimate]:
    groups: defaultdict[str, list[list[Answer]]] = defaultdict(list)
    for answers in by_question.values():
        if answers and answers[0].category is not None:
            groups[answers[0].category].append(answers)
    found = {
        name: accuracy(*_counts(members, config.verifier.correct_at), config.confidence)
        for name, members in sorted(groups.items())
    }
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def table(summary: Summary) -> Table:
    """The figures for a terminal."""
    shown = Table(title=summary.benchmark, title_justify="left", title_style="bold")
    shown.add_column("measure", no_wrap=True)
    for column in ("value", f"{summary.confidence:.0%} interval", "questions"):
        shown.add_column(column, justify="right", no_wrap=True)
    _add(shown, f"avg@{summary.responses_per_question}", summary.accuracy)
    for k, estimate in summary.pass_at.items():
        _add(shown, f"pass@{k}", estimate)
    for name, estimate in summary.categories.items():
        _add(shown, f"  {name}", estimate)
    return shown


def remarks(summary: Summary) -> list[str]:
    """Sentences on what the table does not show: failures, what they may hide, responses that were cut."""
    said: list[str] = []
    total = summary.questions * summary.responses_per_question
    for service, counts in summary.failed.items():
        listed = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        said.append(f"no verdict from {service}: {listed}; these count neither as right nor as wrong")
        said.append(f"  the last reason: {summary.last_reason[service]}")
    if summary.not_asked:
        said.append(f"{summary.not_asked} of {total} responses were not asked for yet")
    if summary.judged < total:
        low, high = summary.if_failed
        said.append(f"accuracy would be {low:.1%} were all of them wrong, and {high:.1%} were all right")
    if summary.truncated:
        said.append(f"{summary.truncated} of {total} responses were cut at sampling.max_new_tokens")
    return said


def _add(shown: Table, name: str, estimate: Estimate | None) -> None:
    if estimate is None:
        shown.add_row(name, "-", "-", "0")
        return
    interval = f"{estimate.low:.1%} to {estimate.high:.1%}"
    shown.add_row(name, f"{estimate.value:.1%}", interval, f"{estimate.count:,}")
