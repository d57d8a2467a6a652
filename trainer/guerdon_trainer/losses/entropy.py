"""An entropy bonus from sampled tokens alone.

Shape suffixes: B sequences, T response tokens.
"""

from torch import Tensor


def entropy_surrogate(logps_BT: Tensor) -> Tensor:
    """Per token, a number whose gradient is on average that of the policy's negative entropy (in nats).

    The gradient of the entropy is -E[log pi(y) grad log pi(y)] over tokens sampled from the policy, so no distribution
    over the vocabulary is needed. The value means nothing: adding it to a loss with a positive coefficient raises the
    entropy.
    """
    return logps_BT.detach() * logps_BT
