"""The code verifier: runs untrusted programs against tests; only the supervisor judges."""
