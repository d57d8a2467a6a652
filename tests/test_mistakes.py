"""docs/papers/mistakes.md names tests that exist, and each of its rules has one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_rule_names_tests_that_exist() -> None:
    rows = re.findall(r"^\| (\d+) \|(.*)$", (ROOT / "docs/papers/mistakes.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 17))
    for number, row in rows:
        named = re.findall(r"`(tests/\S+\.py)::(\w+)`", row)
        assert named, f"rule {number} has no test"
        for path, name in named:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), name
