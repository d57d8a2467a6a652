"""Per-token estimators of KL(policy || reference) from samples of the policy.

k1 = lp - rlp, k2 = (lp - rlp)^2 / 2, k3 = exp(rlp - lp) - (rlp - lp) - 1 (http://joschu.net/blog/kl-approx.html).

Shape suffixes: B sequences, T response tokens.
"""

from typing import Literal

from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3", "abs"]

#: k3 grows exponentially: its log-ratio is held in +-20 nats and its value in +-10.
_K3_LOG_RATIO_BOUND = 20.0
_K3_BOUND = 10.0


def kl_estimate(logps_BT: Tensor, ref_logps_BT: Tensor, estimator: KlEstimator = "k3") -> Tensor:
    """One estimate per token, in nats; mask it before any reduction.

    Raises:
        ValueError: an unknown estimator.
    """
    log_ratio_BT = logps_BT - ref_logps_BT
    if estimator == "k1":
        return log_ratio_BT
    if estimator == "abs":
        return log_ratio_BT.abs()
    if estimator == "k2":
        return 0.5 * log_ratio_BT.square()
    if estimator == "k3":
        reverse_BT = (-log_ratio_BT).clamp(-_K3_LOG_RATIO_BOUND, _K3_LOG_RATIO_BOUND)
        return (reverse_BT.exp() - reverse_BT - 1).clamp(-_K3_BOUND, _K3_BOUND)
    raise ValueError(f"estimator {estimator!r} is none of k1, k2, k3, abs")
