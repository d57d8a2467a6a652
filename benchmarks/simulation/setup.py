"""What a simulated run consists of, three examples of it, and how words change one."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Setup:
    """One run. Seconds, tokens and bytes."""

    steps: int = 3
    groups: int = 32
    group_size: int = 8
    ahead: int = 0
    #: Groups asked and not yet taken for a batch, of all steps (`rollout.groups_in_flight`).
    in_flight: int = 256
    #: Lognormal lengths of responses, cut at the most.
    tokens_mean: float = 1000.0
    tokens_sigma: float = 0.7
    tokens_most: int = 8192
    prompt_tokens: int = 200
    #: Pods, sequences that each decodes together, and seconds of each for a token. A group stays in its pod.
    rollout_pods: int = 1
    rollout_slots: int = 64
    token_s: float = 0.02
    #: finish: for new weights a pod lets its groups end before it takes others; keep: they go on under the new ones.
    on_update: str = "finish"
    #: Programs that all pods of the verifier run at once, and CPU seconds of one.
    math_workers: int = 2
    math_s: float = 1 / 3600
    #: A second verifier, such as `code`, asked after the first; 0 workers: none.
    code_workers: int = 0
    code_s: float = 0.25
    #: Scoring replicas, and tokens each scores in a second; 0: no process rewards.
    prm_replicas: int = 1
    prm_tokens_s: float = 40_000.0
    #: One learner, which takes the whole batch in one request; 0: the PRM does not learn.
    prm_update_tokens_s: float = 0.0
    #: The trainer's own time for a batch, and a pod's to take up new weights.
    train_s: float = 30.0
    publish_s: float = 5.0
    #: CPU of the trainer's client, of Redis and of the worker's queue for a request, both ways together.
    client_s: float = 0.00029
    redis_s: float = 0.00016
    worker_s: float = 0.00032
    #: The client's CPU for each token that comes with an answer, and that it sends to a scorer.
    read_token_s: float = 135e-9
    write_token_s: float = 33e-9
    #: Processes that the client's work is spread over; Redis servers, by service or by group.
    clients: int = 1
    shards: int = 1
    shard_by: str = "service"
    seed: int = 0


#: A host, one node of 8 GPUs, and 1,000 GPUs: 512 train, 448 sample (112 pods of 4), 40 score by a PRM that is frozen.
PRESETS = {
    "laptop": Setup(token_s=0.03, tokens_mean=12, tokens_most=12, prm_tokens_s=4000, train_s=2),
    "pod": Setup(
        groups=256, tokens_mean=1500, rollout_pods=4, rollout_slots=128, train_s=120, math_workers=8
    ),
    "thousand": Setup(
        groups=2048,
        group_size=16,
        ahead=1,
        in_flight=4096,
        tokens_mean=4000,
        tokens_most=16_384,
        rollout_pods=112,
        rollout_slots=256,
        token_s=0.03,
        math_workers=64,
        prm_replicas=40,
        train_s=240,
        publish_s=30,
    ),
}


def changed(setup: Setup, words: Sequence[str]) -> Setup:
    """A setup with `key=value` words.

    Raises:
        SystemExit: an unknown key, or a value that is no number.
    """
    kinds = {one.name: one.type for one in fields(Setup)}
    for word in words:
        key, _, text = word.partition("=")
        if key not in kinds:
            raise SystemExit(f"{key!r} is no parameter; there are {', '.join(kinds)}")
        try:
            value = {"int": int, "float": float, "str": str}[
                str(getattr(kinds[key], "__name__", kinds[key]))
            ](text)
        except ValueError:
            raise SystemExit(f"{key} takes a number, not {text!r}") from None
        setup = replace(setup, **{key: value})
    return setup
