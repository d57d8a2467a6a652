"""Which rewards, advantages and losses go together; what does not is a sentence that names the keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from guerdon_trainer.config.algorithms import (
    NftConfig,
    ReinforcePpConfig,
    SpreadFilter,
    StdThresholdFilter,
    TruncationFilter,
    VeriFreeConfig,
)

if TYPE_CHECKING:
    from guerdon_trainer.config.run import RunConfig
    from guerdon_trainer.config.services import SourceConfig

#: Advantages that differ from token to token.
PER_TOKEN = ("prime", "reinforce_pp")


def check_rewards(config: "RunConfig") -> None:
    """Refuse rewards that cannot be told apart, or do not say what a response is worth.

    Raises:
        ValueError: names the keys.
    """
    outcomes = config.outcome_rewards
    if not outcomes:
        raise ValueError("rewards needs at least one entry with role outcome")
    _check_names(config)
    if config.correctness not in (None, *(reward.name for reward in outcomes)):
        raise ValueError(f"correctness {config.correctness!r} is no entry of rewards with role outcome")
    if config.correctness is None and outcomes[0].gate is not None and len(outcomes) > 1:
        raise ValueError(
            f"the first entry of rewards, {outcomes[0].name!r}, has a gate: say in correctness which entry says how "
            "right a response is"
        )
    if sum(reward.role == "process" for reward in config.rewards) > 1:
        raise ValueError("rewards may have one entry with role process")
    if (config.process is None) != (config.process_reward is None):
        raise ValueError(
            "an entry of rewards with role process and the section process_reward need each other"
        )


def _check_names(config: "RunConfig") -> None:
    names = [reward.name for reward in config.rewards]
    if len(set(names)) < len(names):
        raise ValueError(f"two rewards have the same name: {', '.join(names)}: give one another name")
    for reward in config.rewards:
        elsewhere = reward.url is not None or reward.source.service != reward.name
        if elsewhere and reward.name in (config.rollout.service, *config.services):
            raise ValueError(f"reward {reward.name!r} has the name of another service: give it another name")


def check_fit(config: "RunConfig") -> None:
    """Refuse combinations that have no meaning.

    Raises:
        ValueError: names the keys that do not go together.
    """
    _check_advantage(config)
    _check_replicas(config)
    _check_adapters(config)
    _check_mirror(config)
    _check_push(config)
    _check_weights(config)
    _check_filters(config)
    if isinstance(config.loss, NftConfig):
        _check_nft(config)
    if isinstance(config.loss, VeriFreeConfig):
        _check_verifree(config, config.loss)
    in_reward = isinstance(config.advantage, ReinforcePpConfig) and config.advantage.kl_coefficient
    for section, coefficient in (("loss", config.loss.kl_coefficient), ("advantage", in_reward)):
        if coefficient and not config.training.kl_to_initial:
            raise ValueError(
                f"{section}.kl_coefficient needs training.kl_to_initial: it keeps the initial policy"
            )


def _check_advantage(config: "RunConfig") -> None:
    name = config.advantage.name if config.advantage else None
    loss = config.loss.name
    if (name is None) != (loss == "nft"):
        raise ValueError(
            "loss nft needs advantage null, and only it does: it weighs responses by correctness"
        )
    if config.process is not None and name not in PER_TOKEN:
        raise ValueError(f"an entry of rewards with role process needs advantage {' or '.join(PER_TOKEN)}")
    if name == "prime" and config.process is None:
        raise ValueError("advantage prime needs an entry of rewards with role process")
    if name in PER_TOKEN and loss == "gspo":
        raise ValueError(f"advantage {name} is per token and loss gspo per sequence: use loss gspo_token")
    if name in PER_TOKEN and loss == "verifree":
        raise ValueError(
            f"advantage {name} is per token and loss verifree per sequence: use advantage rloo or grpo"
        )


def _check_replicas(config: "RunConfig") -> None:
    reward, learner = config.process, config.process_reward
    if reward is None or learner is None or learner.replicas is None:
        return
    replicas = learner.replicas
    if learner.order == "none":
        raise ValueError(
            "process_reward.replicas: with order none nobody learns; let the entry with role process ask the replicas"
        )
    if replicas.options:
        raise ValueError("process_reward.replicas.options: replicas get those of the entry with role process")
    if replicas.url == reward.url and replicas.service in (None, reward.source.service):
        raise ValueError(
            f"process_reward.replicas is the learner itself, {reward.name!r}: name their queue or url"
        )
    for teacher in _started(config, reward.source):
        for replica in _started(config, replicas):
            _check_replica_settings(teacher, replica)


def _started(config: "RunConfig", source: "SourceConfig") -> list[dict[str, JsonValue]]:
    """The settings of the services that a recipe starts behind the queue of `source`."""
    if source.url is not None:
        return []
    services = config.services
    names = [source.service, getattr(services.get(source.service or ""), "queue", None)]
    return [service.settings for key, service in services.items() if (service.queue or key) in names]


def _check_replica_settings(learner: Mapping[str, Any], replica: Mapping[str, Any]) -> None:
    """What makes the scores of both the same, where the recipe starts both."""
    for key in ("model", "reference", "policy_weights_dir", "chat_template"):
        if learner.get(key) != replica.get(key):
            raise ValueError(
                f"services: the learner has {key} {learner.get(key)!r} and its replicas {replica.get(key)!r}: "
                "they would score differently"
            )
    published = [learner[key] for key in ("weights_dir", "mirror_url") if key in learner]
    if replica.get("weights_dir") not in published:
        raise ValueError(
            f"services: the replicas' weights_dir {replica.get('weights_dir')!r} is none that the learner "
            "publishes to (weights_dir, mirror_url)"
        )
    if "beta" in replica and replica["beta"] != learner.get("beta"):
        raise ValueError("services: leave beta out of the replicas' settings: they take the learner's")


def _check_adapters(config: "RunConfig") -> None:
    lora = config.optimizer.lora
    if lora is None or lora.publish == "merged":
        return
    key = "optimizer.lora.publish adapter"
    if config.rollout.push is not None:
        raise ValueError(f"{key} goes without rollout.push, which sends whole weights")
    for reward in config.outcome_rewards:
        if reward.follows_policy:
            raise ValueError(
                f"{key} is for rollouts alone: reward {reward.name!r} follows the policy, as a whole model"
            )
    published = (str(config.run_folder / "weights" / "policy"), config.weights.mirror_url)
    for name, service in config.services.items():
        settings = service.settings
        for whole in (settings.get("model"), settings.get("policy_weights_dir")):
            if whole is not None and whole in published:
                raise ValueError(
                    f"{key}: service {name!r} needs whole models in {whole}; a rollout service takes adapters "
                    "with model the initial policy and weights_dir that folder"
                )
        followed = settings.get("weights_dir")
        if followed is None or followed not in published:
            continue
        most = settings.get("max_lora_rank", 0)
        if settings.get("engine") != "vllm" or not isinstance(most, int) or most < lora.rank:
            raise ValueError(f"{key}: service {name!r} needs engine vllm and max_lora_rank {lora.rank}")


def _check_mirror(config: "RunConfig") -> None:
    """A URL has one writer, and is no part of what it mirrors."""
    url = config.weights.mirror_url
    if url is None:
        return
    weights = (config.run_folder / "weights").resolve()
    if url.startswith("file://") and Path(url.removeprefix("file://")).resolve().is_relative_to(weights):
        raise ValueError(f"weights.mirror_url lies in {weights}, where the run writes versions itself")
    for name, service in config.services.items():
        if str(service.settings.get("mirror_url", "")).rstrip("/") == url.rstrip("/"):
            raise ValueError(
                f"weights.mirror_url is services.{name}.settings.mirror_url as well: a URL has one writer"
            )


def _check_push(config: "RunConfig") -> None:
    """What a replica that the recipe starts must have to be sent versions."""
    if config.rollout.push is None:
        return
    for settings in _started(config, config.sources[config.rollout.service]):
        transport = settings.get("vllm")
        if settings.get("engine", "auto") == "transformers":
            raise ValueError("rollout.push sends to vLLM: the rollout service's engine must be vllm")
        if not isinstance(transport, dict) or "weight_transfer_config" not in transport:
            raise ValueError(
                "rollout.push: the rollout service needs the setting vllm: "
                "{weight_transfer_config: {backend: nccl}}"
            )
        if config.weights.mirror_url is not None and settings.get("weights_dir") == config.weights.mirror_url:
            raise ValueError(
                "rollout.push: the rollout service's weights_dir must be the folder, not weights.mirror_url, "
                "where a version arrives after the next one was sent"
            )


def _check_weights(config: "RunConfig") -> None:
    # NFT learns from correctness, and VeriFree raises its reference's likelihood, whatever the weights.
    if isinstance(config.loss, (NftConfig, VeriFreeConfig)):
        return
    if not any(reward.weight for reward in config.rewards):
        raise ValueError("every entry of rewards has weight 0: there is nothing to learn from")


def _check_filters(config: "RunConfig") -> None:
    most = config.rollout.max_new_tokens
    weighted = any(reward.weight for reward in config.outcome_rewards)
    for one in config.filter:
        if isinstance(one, (SpreadFilter, StdThresholdFilter)) and not weighted:
            raise ValueError(
                f"filter {one.kind} looks at how rewards differ, and every outcome in rewards has weight 0: "
                "give one a weight, or take filter accuracy or null"
            )
        if isinstance(one, TruncationFilter) and one.by == "tokens" and one.margin >= most:
            raise ValueError(
                f"filter truncation: margin ({one.margin}) must be below rollout.max_new_tokens ({most}): "
                "no group would ever pass"
            )


def _check_nft(config: "RunConfig") -> None:
    for reward in config.outcome_rewards:
        if reward.weight and reward is not config.correctness_reward:
            raise ValueError(
                f"loss nft learns from {config.correctness_reward.name} alone, which says how right a response is "
                f"(correctness): give {reward.name!r} weight 0"
            )


def _check_verifree(config: "RunConfig", loss: VeriFreeConfig) -> None:
    if config.injected is None:
        raise ValueError(f"loss.service {loss.service!r} is no entry of rewards with role outcome")
    if not _scores_what_follows(config.injected.options):
        raise ValueError(
            f"loss verifree needs all tokens of the answer scored: give {loss.service!r} the option template verifree, "
            "or custom with scored: text"
        )
    if not config.injected.follows_policy:
        raise ValueError(
            f"loss verifree needs follows_policy: true beside {loss.service!r}: R is that of the policy it trains"
        )
    if loss.weight == "reward" and config.injected.options.get("aggregation") == "mean_logprob":
        raise ValueError(
            "loss.weight reward raises the reference's likelihood by R, which is negative with the option aggregation "
            f"mean_logprob of {loss.service!r}: take product, or loss.weight advantage"
        )
    temperature = config.injected.options.get("temperature", 1.0)
    if temperature != config.rollout.temperature:
        raise ValueError(
            f"loss verifree needs the same temperature in the options of {loss.service!r} ({temperature}) and in "
            f"rollout.temperature ({config.rollout.temperature})"
        )


def _scores_what_follows(options: Mapping[str, Any]) -> bool:
    """Whether the tokens that the reference reward scores begin where the sampled ones end."""
    template = options.get("template")
    custom = options.get("custom_template")
    return template == "verifree" or (
        template == "custom"
        # Anything but a mapping is the service's to refuse.
        and (not isinstance(custom, Mapping) or custom.get("scored") == "text")
    )
