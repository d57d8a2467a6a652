from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from guerdon import weights
from guerdon_trainer.batch import Batch, make_batch
from guerdon_trainer.groups import Group
from guerdon_trainer.model import all_logprobs, load_policy, load_tokenizer, micro_batches, token_logprobs
from guerdon_trainer.prepare import TinyPolicy
from guerdon_trainer.prepare.tiny import build_model, build_tokenizer
from guerdon_trainer.weights import publish_policy


@pytest.fixture
def model() -> PreTrainedModel:
    return build_model(TinyPolicy(hidden_size=16, layers=2, heads=2), build_tokenizer(), seed=0).eval()


@pytest.fixture
def batch(make_group: Callable[..., Group]) -> Batch:
    groups = [
        make_group(0, {"1": 1.0, "12345": 0.0, "12": 0.0}),
        make_group(1, {"": 0.0, "+3": 1.0}, prompt="1+2+3+4="),
    ]
    return make_batch(groups, None)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_each_row_alone_with_all_logits(
    model: PreTrainedModel, batch: Batch, temperature: float
) -> None:
    logps_BT, entropy_BT = token_logprobs(model, batch, temperature)
    for row in range(len(batch)):
        start, end = int(batch.prompt_lengths_B[row]), int(batch.lengths_B[row])
        ids = batch.input_ids_BS[row : row + 1, :end]
        all_TV = (model(input_ids=ids).logits[0] / temperature).log_softmax(-1)[start - 1 : end - 1]
        expected = all_TV.gather(-1, ids[0, start:end, None])[:, 0]
        torch.testing.assert_close(logps_BT[row, : end - start], expected, atol=1e-5, rtol=0)
        entropy = -(all_TV.exp() * all_TV).sum(-1)
        torch.testing.assert_close(entropy_BT[row, : end - start], entropy, atol=1e-5, rtol=0)
    assert bool((logps_BT[~batch.mask_BT] == 0).all())
    assert logps_BT.dtype == torch.float32


@pytest.mark.parametrize("max_tokens", [1, 20, 30, 10_000])
def test_micro_batches_hold_every_row_once_within_the_budget(batch: Batch, max_tokens: int) -> None:
    parts = list(micro_batches(batch, max_tokens))
    assert sorted(torch.cat(parts).tolist()) == list(range(len(batch)))
    for rows in parts:
        assert len(rows) == 1 or len(rows) * int(batch.lengths_B[rows].max()) <= max_tokens


def test_micro_batches_change_no_logprob(model: PreTrainedModel, batch: Batch) -> None:
    whole_BT, _ = token_logprobs(model, batch, 1.0)
    for max_tokens in (1, 25):
        torch.testing.assert_close(
            all_logprobs(model, batch, 1.0, max_tokens), whole_BT.detach(), atol=1e-5, rtol=0
        )


def test_what_is_published_loads_as_it_was(model: PreTrainedModel, batch: Batch, tmp_path: Path) -> None:
    publish_policy(model, build_tokenizer(), tmp_path, 3)
    latest = weights.latest(tmp_path)
    assert latest is not None
    assert latest.version == 3
    loaded = load_policy(latest.path, torch.device("cpu"))
    assert load_tokenizer(latest.path)("1+2=")["input_ids"] == build_tokenizer()("1+2=")["input_ids"]
    torch.testing.assert_close(
        token_logprobs(loaded, batch, 1.0)[0], token_logprobs(model, batch, 1.0)[0], atol=0, rtol=0
    )
