"""What of a response is trained on: the tokens it sampled, or its reasoning followed by a reference answer."""

from dataclasses import dataclass

from guerdon.types import Result
from guerdon_trainer.config import RewardConfig
from guerdon_trainer.groups import Response


@dataclass(frozen=True)
class Row:
    """One row of a batch.

    The last `injected` of the token ids are a reference's and were not sampled, so they have no engine log-probability.
    `weight` is what the likelihood of the reference counts, VeriFree's R. `reward` is None where one is missing.
    `learned` rows give a gradient if they have a reward; the others count in baselines alone.
    """

    token_ids: list[int]
    engine_logps: list[float]
    reward: float | None
    learned: bool = True
    injected: int = 0
    weight: float = 0.0


def sampled_row(response: Response, *, mask_truncated: bool) -> Row:
    """The response as it was sampled.

    Raises:
        ValueError: there are not as many log-probabilities as tokens.
    """
    rollout = response.rollout
    if len(rollout.logprobs) != len(rollout.token_ids):
        raise ValueError(
            f"response {response.id} has {len(rollout.token_ids)} tokens and {len(rollout.logprobs)} numbers for them"
        )
    learned = not (mask_truncated and response.truncated)
    return Row(rollout.token_ids, rollout.logprobs, response.reward, learned)


def injected_row(response: Response, reward: RewardConfig, *, mask_truncated: bool) -> Row:
    """The response's reasoning with the reference that `reward` put after it and scored (VeriFree).

    A response without a place for an answer stays as it was sampled: its reasoning led nowhere, and its R is 0. A
    truncated one, where they are masked, has R = 0 and no gradient. Where a sampled token crosses the border to the
    answer there is no such row of sampled ids: then what was sampled before it is trained on, without a reference.

    Raises:
        ValueError: the scored ids do not fit their place.
    """
    row = sampled_row(response, mask_truncated=mask_truncated)
    result = response.results.get(reward.name)
    if row.reward is None or result is None or result.value is None:
        return row
    if not row.learned:
        return Row(row.token_ids, row.engine_logps, row.reward - reward.weight * result.value, learned=False)
    span = result.verdict.span if result.verdict else None
    if span is None:
        return row
    kept = span.sampled_tokens
    before = Row(row.token_ids[:kept], row.engine_logps[:kept], row.reward)
    return before if kept < span.token_start else _followed(before, result, response.id)


def _followed(row: Row, result: Result, id: str) -> Row:
    if not result.token_ids or len(row.token_ids) + len(result.token_ids) != _end(result):
        raise ValueError(f"the reference scored for response {id} does not stand where its span says")
    return Row(
        row.token_ids + result.token_ids,
        row.engine_logps + [0.0] * len(result.token_ids),
        row.reward,
        injected=len(result.token_ids),
        weight=result.value or 0.0,
    )


def _end(result: Result) -> int | None:
    return result.verdict.span.token_end if result.verdict and result.verdict.span else None
