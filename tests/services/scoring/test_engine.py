"""Log-probs equal those of the plain forward, whatever shares the batch."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from guerdon.functional import aggregate_logprobs
from guerdon.logprobs import attention, head
from guerdon.types import ChatMessage, Sample
from guerdon_services import models, scoring
from guerdon_services.scoring import ScoredSequence, engine, token_batches, token_logprobs


@pytest.fixture(params=["tiny_llama", "tiny_qwen2"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return models.load(cast(Path, request.getfixturevalue(request.param))).model


def ragged(count: int, *, seed: int = 0) -> list[ScoredSequence]:
    generator = random.Random(seed)

    def ids(length: int) -> list[int]:
        return [generator.randrange(250) for _ in range(length)]

    return [
        ScoredSequence(ids(generator.randint(1, 20)), ids(generator.randint(1, 40))) for _ in range(count)
    ]


def plain(model: PreTrainedModel, sequence: ScoredSequence, temperature: float = 1.0) -> Tensor:
    ids = torch.tensor([[*sequence.prompt_ids, *sequence.response_ids]])
    logits = model(input_ids=ids).logits[0].float() / temperature
    logps = torch.log_softmax(logits, -1)[:-1].gather(-1, ids[0, 1:, None])[:, 0]
    return logps[len(sequence.prompt_ids) - 1 :]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("max_tokens", [1, 64, 10_000])
def test_equals_the_plain_forward(model: PreTrainedModel, temperature: float, max_tokens: int) -> None:
    sequences = ragged(9)
    scored = token_logprobs(model, sequences, temperature=temperature, max_tokens=max_tokens)
    for sequence, logps in zip(sequences, scored, strict=True):
        assert logps.dtype == torch.float32
        torch.testing.assert_close(logps, plain(model, sequence, temperature), atol=1e-4, rtol=0)


def test_each_forward_is_a_sign_of_life(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    signs: list[None] = []
    monkeypatch.setattr(engine, "report_progress", lambda: signs.append(None))
    token_logprobs(model, ragged(5), max_tokens=1)
    assert len(signs) == 5


def test_a_score_does_not_depend_on_its_neighbours(model: PreTrainedModel) -> None:
    sequences = ragged(12, seed=1)
    together = token_logprobs(model, sequences, max_tokens=10_000)
    for index, sequence in enumerate(sequences):
        alone = token_logprobs(model, [sequence])[0]
        torch.testing.assert_close(together[index], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", [1, 3, 16, 256])
def test_blocks_of_any_size_change_neither_values_nor_gradients(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(attention, "_ROWS", rows)
    prompt = list(range(1, 40))
    sequences = [ScoredSequence(prompt, list(range(40 + i, 90 + 2 * i))) for i in range(3)]
    torch.cat(scoring.batch_logprobs(model, sequences, temperature=1.0)).square().sum().backward()
    ours = [cast(Tensor, p.grad).clone() for p in model.parameters()]
    model.zero_grad()
    expected = torch.cat([plain(model, sequence) for sequence in sequences])
    expected.square().sum().backward()
    for mine, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(mine, cast(Tensor, parameter.grad), atol=2e-2, rtol=1e-3)
    scored = torch.cat(token_logprobs(model, sequences))
    torch.testing.assert_close(scored, expected.detach(), atol=1e-4, rtol=0)


def test_an_empty_response_has_no_logprobs(model: PreTrainedModel) -> None:
    scored = token_logprobs(model, [ScoredSequence([1], []), ScoredSequence([1], [2])])
    assert [len(logps) for logps in scored] == [0, 1]


def test_an_empty_prompt_is_refused(model: PreTrainedModel) -> None:
    with pytest.raises(ValueError, match="prompt"):
        token_logprobs(model, [ScoredSequence([], [2])])


def test_small_chunks_change_neither_values_nor_gradients(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = ragged(4, seed=2)

    def gradients() -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        logps = torch.cat(scoring.batch_logprobs(model, sequences, temperature=0.8))
        logps.square().sum().backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return logps.detach(), grads

    whole, whole_grads = gradients()
    monkeypatch.setattr(head, "LOGITS_PER_CHUNK", 7 * 259)
    chunked, chunked_grads = gradients()
    torch.testing.assert_close(chunked, whole, atol=1e-5, rtol=1e-5)
    for chunked_grad, whole_grad in zip(chunked_grads, whole_grads, strict=True):
        torch.testing.assert_close(chunked_grad, whole_grad, atol=1e-3, rtol=1e-4)


def test_gradients_equal_those_of_the_plain_forward(model: PreTrainedModel) -> None:
    sequences = ragged(3, seed=3)
    torch.cat(scoring.batch_logprobs(model, sequences, temperature=1.0)).sum().backward()
    ours = [cast(Tensor, p.grad).clone() for p in model.parameters()]
    model.zero_grad()
    torch.cat([plain(model, sequence) for sequence in sequences]).sum().backward()
    for mine, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(mine, cast(Tensor, parameter.grad), atol=1e-3, rtol=1e-3)


def test_equal_sequences_cost_what_one_costs(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """`max_tokens` bounds the logits too: a row with a thousand equal responses is as short as with one."""
    rows: list[int] = []
    real = head.target_logprobs

    def counted(model: nn.Module, hidden: Tensor, targets: Tensor, *others: float, **options: bool) -> Any:
        rows.append(len(targets))
        return real(model, hidden, targets, *others, **options)

    monkeypatch.setattr("guerdon.logprobs.engine.target_logprobs", counted)
    # The same tokens cut elsewhere, and one that ends within another.
    one, cut, shorter = (
        ScoredSequence([1, 2, 3], [4, 5, 6]),
        ScoredSequence([1], [2, 3, 4, 5, 6]),
        ScoredSequence([1, 2], [3, 4]),
    )
    sequences = [one] * 1000 + [cut, shorter]
    scored = token_logprobs(model, sequences, max_tokens=16)
    assert rows == [5]
    for sequence, logps in zip(sequences, scored, strict=True):
        assert torch.equal(logps, scored[1000][len(sequence.prompt_ids) - 1 :][: len(logps)])
    torch.testing.assert_close(scored[1000], plain(model, cut), atol=1e-4, rtol=0)


def test_equal_sequences_all_count_in_the_gradient(model: PreTrainedModel) -> None:
    sequence = ragged(1, seed=4)[0]

    def gradient(copies: int) -> Tensor:
        model.zero_grad()
        torch.cat(scoring.batch_logprobs(model, [sequence] * copies, temperature=1.0)).sum().backward()
        return torch.cat([cast(Tensor, p.grad).flatten().clone() for p in model.parameters()])

    torch.testing.assert_close(gradient(3), 3 * gradient(1), atol=1e-3, rtol=1e-4)


def test_batches_lose_nothing_but_empty_responses(model: PreTrainedModel) -> None:
    sequences = [*ragged(50), ScoredSequence([1], [])]
    batches = token_batches(model, sequences, 100)
    assert sorted(i for batch in batches for i in batch) == list(range(50))
    assert len(batches) > 1


@pytest.mark.parametrize("case", ["k4_reference_setting", "temperature_0p7", "no_eos_row_ignored"])
def test_verifree_rewards_equal_the_public_ones(
    shared: Path, table_model: Callable[[Any], nn.Module], case: str
) -> None:
    data = json.loads((shared / "vectors" / f"verifree__{case}.json").read_text())
    inputs, outputs = data["inputs"], data["outputs"]
    sequences = [
        ScoredSequence(prompt + think, answer)
        for prompt, think, answer in zip(
            inputs["prompt_ids"], inputs["think_ids"], inputs["answer_ids"], strict=True
        )
    ]
    scored = token_logprobs(
        table_model(inputs["logit_table"]), sequences, temperature=data["parameters"]["temperature"]
    )
    for row, (logps, ignored) in enumerate(zip(scored, inputs["no_eos"], strict=True)):
        if not ignored:
            expected = pytest.approx(outputs["R"][row], rel=1e-4, abs=1e-6)
            assert aggregate_logprobs(logps, "product") == expected
            assert logps.sum().item() == pytest.approx(outputs["logp_reward"][row], rel=1e-4)


@pytest.mark.slow
def test_a_pretrained_model_scores_as_its_plain_forward_does(smollm2_folder: Path) -> None:
    loaded = models.load(smollm2_folder)
    chat = [ChatMessage(role="user", content="What is 17 + 25?")]
    prompt = models.encode_prompt(loaded.tokenizer, chat)
    assert str(loaded.tokenizer.decode(prompt)).endswith("<|im_start|>assistant\n")
    answers = ["42", "17 + 25 = 42, because 7 + 5 is 12 and 10 + 20 + 10 is 40.", "I do not know."]
    sequences = [
        ScoredSequence(prompt, models.encode_response(loaded.tokenizer, Sample(response=answer)))
        for answer in answers
    ]
    for sequence, logps in zip(sequences, token_logprobs(loaded.model, sequences), strict=True):
        torch.testing.assert_close(logps, plain(loaded.model, sequence), atol=1e-4, rtol=0)
