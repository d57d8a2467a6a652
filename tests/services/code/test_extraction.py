"""Which block of a response is the program."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.code.extraction import last_code_block


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("a\n```py\n1\n```\nb\n```python\n2\n```\nc", "2\n"),
        ("```python\n1\n```\nIt prints\n```\n1\n```", "1\n"),
        ("```\n1\n```\n```text\n2\n```", "2\n"),
        ("~~~python\nx = '''\n```\n'''\n~~~", "x = '''\n```\n'''\n"),
        ("````python\n```\n````\n", "```\n"),
        ("   ```Python3 title=x\n1\n   ```", "1\n"),
        ("```python\r\nprint(1)\r\n```\r\n", "print(1)\r\n"),
        ("```python\n```", ""),
        ("```python\n1\n```\n```python\n2", "1\n"),
        ("```python\nprint(1)", None),
        ("print(1)", None),
        ("", None),
        ("inline ```print(1)``` code", None),
    ],
)
def test_last_block(response: str, program: str | None) -> None:
    assert last_code_block(response) == program


@given(st.text(alphabet="`~pyx \n\r", max_size=200))
def test_any_text_gives_a_part_of_itself_or_nothing(response: str) -> None:
    block = last_code_block(response)
    assert block is None or block in response
