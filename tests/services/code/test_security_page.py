"""The tests that the security page names exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/security.md"


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)", PAGE.read_text()))
    sources = {path.stem: path.read_text() for path in HERE.glob("test_*.py")}
    functions = set(re.findall(r"def (test_\w+)", "\n".join(sources.values())))
    assert named
    assert named - functions - set(sources) == set()
