"""Score one answer through every door of a math service: python examples/score_math.py URL [URL ...]

A URL is http://, grpc:// or redis:// (the queue); `guerdon up examples/services.yaml` prints all three.
"""

import sys

from guerdon import Client, Sample

sample = Sample(id="a1", prompt="What is 1/2 + 1/4?", response=r"That is \boxed{3/4}", references=["0.75"])

for url in sys.argv[1:]:
    with Client(url, service="math") as client:
        [result] = client.score([sample])
    print(result.status, result.value, result.reason)
