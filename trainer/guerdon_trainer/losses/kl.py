"""Per-token estimators of KL(policy || reference) from samples of the policy.

k1 = lp - rlp, k2 = (lp - rlp)^2 / 2, k3 = exp(rlp - lp) - (rlp - lp) - 1 (http://joschu.net/blog/kl-approx.html).
`k1+` and `k3+` have their value, and the gradient of k2: the one whose mean over samples is the gradient of the KL.
That of k1 averages to zero, and that of k3 ends at its bound, where a policy that went astray needs it most.

Shape suffixes: B sequences, T response tokens.
"""

from typing import Literal, get_args

from torch import Tensor

#: `kl`, `mse` and `low_var_kl` are verl's names of k1, k2 and k3.
KlEstimator = Literal["k1", "k2", "k3", "k1+", "k3+", "abs", "kl", "mse", "low_var_kl"]
_VERL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}

#: k3 grows exponentially: its log-ratio is held in +-20 nats and its value in +-10.
_K3_LOG_RATIO_BOUND = 20.0
_K3_BOUND = 10.0


def kl_estimate(logps_BT: Tensor, ref_logps_BT: Tensor, estimator: KlEstimator = "k3") -> Tensor:
    """One estimate per token, in nats.

    Mask the arguments, not only the result: the gradient of a square at NaN is NaN, whatever weight it has.

    Raises:
        ValueError: an unknown estimator.
    """
    name = _VERL_NAMES.get(estimator, estimator)
    log_ratio_BT = logps_BT - ref_logps_BT
    if name.endswith("+"):
        return _with_gradient_of_k2(kl_estimate(logps_BT.detach(), ref_logps_BT, name[:-1]), log_ratio_BT)  # pyright: ignore[reportArgumentType]
    if name == "k1":
        return log_ratio_BT
    if name == "abs":
        return log_ratio_BT.abs()
    if name == "k2":
        return 0.5 * log_ratio_BT.square()
    if name == "k3":
        reverse_BT = (-log_ratio_BT).clamp(-_K3_LOG_RATIO_BOUND, _K3_LOG_RATIO_BOUND)
        return (reverse_BT.exp() - reverse_BT - 1).clamp(-_K3_BOUND, _K3_BOUND)
    raise ValueError(f"estimator {estimator!r} is none of {', '.join(get_args(KlEstimator))}")


def _with_gradient_of_k2(value_BT: Tensor, log_ratio_BT: Tensor) -> Tensor:
    """`value_BT`, with a gradient of the log-ratio, held in +-20, for each log-probability."""
    pull_BT = log_ratio_BT.detach().clamp(-_K3_LOG_RATIO_BOUND, _K3_LOG_RATIO_BOUND)
    return value_BT + pull_BT * (log_ratio_BT - log_ratio_BT.detach())
