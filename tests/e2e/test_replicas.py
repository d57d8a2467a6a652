"""Several processes behind one queue that follow one folder of weights: whoever answers, it is by the version asked."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import PreTrainedModel

from guerdon import weights
from guerdon.testing import StubService
from guerdon.types import Rollout, Sampling
from guerdon_trainer.config import RunConfig
from guerdon_trainer.connections import connect
from guerdon_trainer.groups import Ask, Group, Response
from guerdon_trainer.launch import clients_of, ensure_policy, finish
from guerdon_trainer.live import LiveView
from guerdon_trainer.prepare import TinyPolicy
from guerdon_trainer.prepare.tiny import EOS_ID, build_model, build_tokenizer
from guerdon_trainer.questions import Question
from guerdon_trainer.rollouts import Rollouts
from guerdon_trainer.run_folder import open_folder, read_lines
from guerdon_trainer.service_stats import ServiceStats
from guerdon_trainer.train import Run

#: Of how many groups: each is asked with the newest version at that time as its oldest.
GROUPS = 1500 if os.environ.get("GUERDON_CHAOS") == "full" else 60
IN_FLIGHT = 12
RESPONSES, TOKENS = 4, 8
PROMPTS = [f"{a}+{b}=" for a in range(3, 8) for b in range(5, 9)]
TINY: dict[str, Any] = {"hidden_size": 16, "layers": 1, "heads": 2, "key_value_heads": 1}


class Publisher:
    """Publishes version after version as fast as files are written, each with weights of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tokenizer = build_tokenizer()
        self._model = build_model(TinyPolicy(**TINY), self._tokenizer, seed=0)
        self.version = -1

    def publish(self) -> None:
        """The next version."""
        self.version += 1
        self._become(self.version)
        weights.publish(self._folder, self.version, self._write)

    def said(self, version: int, prompt: str) -> list[int]:
        """What a version says greedily."""
        self._become(version)
        return _greedy(self._model, self._tokenizer, prompt)

    @torch.no_grad()
    def _become(self, version: int) -> None:
        generator = torch.Generator().manual_seed(version)
        for parameter in self._model.parameters():
            # Wide, so that the likeliest token is so by more than rounding.
            parameter.normal_(0, 1, generator=generator)

    def _write(self, path: Path) -> None:
        self._model.save_pretrained(path)
        self._tokenizer.save_pretrained(path)


@torch.inference_mode()
def _greedy(model: PreTrainedModel, tokenizer: Any, prompt: str) -> list[int]:
    ids = tokenizer(prompt)["input_ids"]
    said: list[int] = []
    while len(said) < TOKENS and EOS_ID not in said:
        said.append(int(model(input_ids=torch.tensor([ids + said])).logits[0, -1].argmax()))
    return said


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService(lambda sample: float(len(sample.response_token_ids))) as made:
        yield made


def config_with(reward: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "unit",
            "policy": {"kind": "tiny", **TINY},
            "data": {"source": "arithmetic", "size": 4},
            "eval_data": {"source": "arithmetic", "size": 4, "settings": {"split": "held_out"}},
            "rewards": [{"name": "length", "url": reward}],
            "failures": {"pause_s": 0.05},
        }
    )


def test_no_group_is_of_two_versions_and_none_is_lost_whichever_replica_ends(
    replicas: Any, redis_url: str, stub: StubService, tmp_path: Path
) -> None:
    folder = tmp_path / "weights"
    publisher = Publisher(folder)
    publisher.publish()
    pids = [
        replicas.start("rollout", model=str(folder), engine="transformers", max_batch=16) for _ in range(3)
    ]
    config = config_with(stub.url)
    stats = ServiceStats()
    taken: list[tuple[Ask, Group]] = []
    with Rollouts(connect(config, redis_url), config, stats) as rollouts:
        opened = rollouts.opened()
        asks: dict[int, Ask] = {}

        def take() -> None:
            group = opened.take(len(opened))
            taken.append((asks[group.position], group))

        for position in range(GROUPS):
            # Told before it can serve, as the trainer does.
            rollouts.policy_version = publisher.version + 1
            publisher.publish()
            prompt = PROMPTS[position % len(PROMPTS)]
            sampling = Sampling(n=RESPONSES, max_new_tokens=TOKENS, temperature=0.0)
            ask = Ask(
                position,
                Question(id=prompt, prompt=prompt, references=[]),
                sampling,
                max(0, publisher.version - 1),
            )
            asks[position] = ask
            opened.ask(ask)
            if position == GROUPS // 3:
                assert replicas.end(pids[0], signal.SIGKILL) == -signal.SIGKILL
            if position == 2 * GROUPS // 3:
                assert replicas.end(pids[1], signal.SIGTERM) == 0
            while len(opened) >= IN_FLIGHT:
                take()
        while len(opened):
            take()
    assert stats.to_dict()["rollout"]["final"] == {"ok": GROUPS}
    assert sorted(group.position for _, group in taken) == list(range(GROUPS))
    for ask, group in taken:
        versions = {response.rollout.model_version for response in group.responses}
        assert versions == {group.policy_version}
        assert group.policy_version >= ask.oldest
        # Not by its stamp alone: these are the words of that version.
        said = publisher.said(group.policy_version, str(ask.question.prompt))
        assert [response.rollout.token_ids for response in group.responses] == [said] * RESPONSES
        assert [response.reward for response in group.responses] == [float(len(said))] * RESPONSES


#: Rewards for the same responses may differ by so much: one batch was padded otherwise than the other.
ROUNDING = 1e-6
PRM = {"name": "prm", "service": "process_reward", "role": "process"}


def prm_config(tmp_path: Path, order: str, url: str, norm: str = "none") -> RunConfig:
    """PRIME with replicas; outcomes come from `url`."""
    return RunConfig.model_validate(
        {
            "name": "unit",
            "folder": tmp_path / "run",
            "policy": {"kind": "tiny", **TINY, "warmup_steps": 1, "warmup_batch": 4},
            "data": {"source": "arithmetic", "size": 16},
            "eval_data": {"source": "arithmetic", "size": 4, "settings": {"split": "held_out"}},
            "rollout": {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 6},
            "rewards": [
                {"name": "outcome", "url": url},
                {**PRM, "options": {"beta": 0.1, "norm": norm}},
            ],
            "process_reward": {"order": order, "replicas": {"service": "process_reward_replica"}},
            "advantage": {"name": "prime"},
            "loss": {"name": "gspo_token"},
            "optimizer": {"lr": 0.01},
            "filter": None,
            "training": {"steps": 3, "checkpoint_every": 3},
            "failures": {"pause_s": 0.05},
            # Nobody started it: a trainer whose services run already does not wait for what its rewards do not name.
            "services": {"code": {}},
        }
    )


def start_prm(replicas: Any, folder: Path, model: Path) -> list[int]:
    """A learner, and two replicas that follow it."""
    prm = {"model": str(model), "weights_dir": str(folder)}
    learner = replicas.start("process_reward", **prm, lr=0.01, keep_last=9)
    return [learner, *(replicas.start("process_reward_replica", **prm) for _ in range(2))]


def groups() -> list[Group]:
    """Two groups of judged responses of different lengths."""
    tokenizer = build_tokenizer()
    made: list[Group] = []
    for position, prompt in enumerate(PROMPTS[:2]):
        texts = [str(10 ** (position + number)) for number in range(3)]
        responses = [
            Response(
                f"{position}/{number}",
                Rollout(
                    response=text,
                    token_ids=tokenizer(text)["input_ids"],
                    logprobs=[-0.5] * len(text),
                    finish_reason="stop",
                    model_version=0,
                ),
                {},
                outcome=float(number % 2),
                reward=float(number % 2),
            )
            for number, text in enumerate(texts)
        ]
        question = Question(id=prompt, prompt=prompt, references=[])
        made.append(Group(position, question, tokenizer(prompt)["input_ids"], responses))
    return made


@pytest.mark.parametrize(("order", "norm"), [("before", "batch"), ("after", "none")])
def test_replicas_score_as_the_learner_would_at_every_version(
    replicas: Any, redis_url: str, tmp_path: Path, order: str, norm: str
) -> None:
    publisher = Publisher(tmp_path / "model")
    publisher.publish()
    start_prm(replicas, tmp_path / "prm", tmp_path / "model" / "v000000000")
    config = prm_config(tmp_path, order, "http://127.0.0.1:1", norm)
    assert config.process_reward is not None
    alone = config.process_reward.model_copy(update={"replicas": None})
    learner = config.model_copy(update={"process_reward": alone})
    judged, stats = groups(), ServiceStats()
    with Rollouts(connect(config, redis_url), config, stats) as rollouts:
        assert rollouts.process_version() == 0
        beside = [
            rollouts.process_rewards(judged, request_id=f"beside {version}", base_version=version)
            for version in range(3)
        ]
    with Rollouts(connect(learner, redis_url), learner, ServiceStats()) as rollouts:
        # The same three updates anew, by the learner alone: it goes back for them.
        by_learner = [
            rollouts.process_rewards(judged, request_id=f"alone {version}", base_version=version)
            for version in range(3)
        ]
    assert [one.version for one in beside] == [one.version for one in by_learner] == [1, 2, 3]
    for mine, theirs in zip(beside, by_learner, strict=True):
        assert mine.tokens.keys() == theirs.tokens.keys() == {r.id for g in judged for r in g.responses}
        for id, rewards in mine.tokens.items():
            assert rewards == pytest.approx(theirs.tokens[id], abs=ROUNDING)
        assert mine.metrics == pytest.approx(theirs.metrics, abs=ROUNDING)
    # They learn: one version's rewards are not those of another.
    assert beside[1].tokens["0/1"] != pytest.approx(beside[2].tokens["0/1"], abs=100 * ROUNDING)
    counts = stats.to_dict()
    assert counts["prm/replicas"]["final"] == {"ok": 3 * 6}
    assert "prm" not in counts or not counts["prm"]["final"]

    # A trainer that was killed goes back to version 1. Replicas may know other weights by the numbers up to 3, so the
    # learner scores, until the version that scores has a number that nobody has heard.
    again = ServiceStats()
    with Rollouts(connect(config, redis_url), config, again) as rollouts:
        back = [
            rollouts.process_rewards(judged, request_id=f"again {version}", base_version=version)
            for version in (1, 2, 3, 4)
        ]
    assert [one.version for one in back] == [2, 3, 4, 5]
    by_replicas = {"before": 2, "after": 1}[order]
    assert {name: one["final"] for name, one in again.to_dict().items()} == {
        "prm": {"ok": (4 - by_replicas) * 6},
        "prm/replicas": {"ok": by_replicas * 6},
    }
    for mine, theirs in zip(back, by_learner[1:], strict=False):
        for id, rewards in mine.tokens.items():
            assert rewards == pytest.approx(theirs.tokens[id], abs=ROUNDING)


class KillingView(LiveView):
    """Ends a rollout replica and a scoring replica when the first group of step 2 is there."""

    def __init__(self, kill: Callable[[], None]) -> None:
        super().__init__("test", 3, Console(quiet=True))
        self._kill: Callable[[], None] | None = kill

    def progress(self, status: str) -> None:
        if self._kill is not None and status.startswith("step 2: 1 of 4 groups"):
            self._kill()
            self._kill = None


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_run_with_replicas_loses_nothing_when_one_of_each_is_killed(
    replicas: Any, redis_url: str, tmp_path: Path
) -> None:
    with StubService(lambda sample: float(len(sample.response_token_ids) % 2)) as outcome:
        config = prm_config(tmp_path, "before", outcome.url)
        folder = open_folder(config)
        initial = ensure_policy(config, folder, lambda text: None)
        killed: list[int] = []
        view = KillingView(lambda: killed.extend(replicas.end(pid, signal.SIGKILL) for pid in victims))
        run = Run(config, view)
        rollout = {"model": str(folder.weights), "engine": "transformers"}
        victims = [replicas.start("rollout", **rollout), replicas.start("rollout", **rollout)][:1]
        victims += start_prm(replicas, folder.path / "prm", initial)[1:2]
        finish(run, clients_of(run, redis_url, view), view)
    rows = read_lines(folder.metrics)
    counts: dict[str, Any] = json.loads(folder.services.read_text())["services"]
    assert killed == [-signal.SIGKILL] * 2
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [row["unrewarded"] for row in rows] == [0, 0, 0]
    assert [row["policy_version"] for row in rows] == [row["prm_version"] for row in rows] == [1, 2, 3]
    # The first is the greeting; two evaluations of four questions, then every group and every response once.
    assert {name: one["final"] for name, one in counts.items()} == {
        "rollout": {"ok": 1 + 2 * 4 + 3 * 4},
        "outcome": {"ok": 1 + 2 * 4 + 3 * 16},
        "prm": {"ok": 1},
        "prm/replicas": {"ok": 1 + 3 * 16},
    }
    # Whichever replica answered, its log-probs are those of the trainer's weights.
    assert max(row["engine_mismatch_max"] for row in rows) < 1e-4


@pytest.mark.usefixtures("undrawn")
def test_a_rollout_service_follows_the_policy_by_a_url_alone(
    replicas: Any, redis_url: str, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/bucket/policy"

    def trained(name: str, **rollout: Any) -> list[dict[str, Any]]:
        with StubService(lambda sample: float(len(sample.response_token_ids) % 2)) as outcome:
            given: dict[str, Any] = config_with(outcome.url).model_dump(exclude={"advantage", "loss"})
            given |= {
                "folder": tmp_path / name,
                "policy": {"kind": "tiny", **TINY, "warmup_steps": 1, "warmup_batch": 4},
                "data": {"source": "arithmetic", "size": 16},
                "rollout": {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 6},
                "optimizer": {"lr": 0.01},
                "filter": None,
                "training": {"steps": 3, "checkpoint_every": 3},
                "weights": {"mirror_url": url},
            }
            config = RunConfig.model_validate(given)
            folder = open_folder(config)
            ensure_policy(config, folder, lambda text: None)
            view = LiveView("test", 3, Console(quiet=True))
            run = Run(config, view)
            pid = replicas.start("rollout", engine="transformers", **rollout)
            finish(run, clients_of(run, redis_url, view), view)
            replicas.end(pid, signal.SIGKILL)
        return read_lines(folder.metrics)

    # No folder at all: configuration and tokenizer come with the first version.
    mirrored = trained("mirrored", model=str(tmp_path / "nowhere"), weights_dir=url)
    shared = trained("shared", model=str(tmp_path / "shared" / "weights" / "policy"))
    numbers = ("reward", "loss", "grad_norm", "response_length", "policy_version", "policy_age_max")
    assert [[row[name] for name in numbers] for row in mirrored] == [
        [row[name] for name in numbers] for row in shared
    ]
    assert [row["policy_version"] for row in mirrored] == [1, 2, 3]
    assert [row["unrewarded"] for row in mirrored] == [0] * 3
    # On policy a version is made of samples by the one before it, which by then could be read at the URL.
    assert max(row["mirror_behind"] for row in mirrored) <= 1
    assert max(row["engine_mismatch_max"] for row in mirrored) < 1e-4
