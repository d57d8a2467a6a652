"""How good is a policy on a benchmark (`guerdon eval`), and how good is a reward on labels (`guerdon eval-reward`)."""
