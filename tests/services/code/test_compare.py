"""Golden verdicts of the comparison modes."""

from typing import Any

import pytest

from guerdon_services.code.compare import text_matches, value_matches


@pytest.mark.parametrize(
    ("mode", "output", "expected", "same"),
    [
        ("exact", b" *\n* *\n", b" *\n* *\n", True),
        ("exact", b" *\n* *", b" *\n* *\n", False),
        ("tokens", b"1  2\n\n3", b"1 2 3\n", True),
        ("tokens", b"12 3", b"1 2 3", False),
        ("tokens", b"", b"", True),
        ("tokens", "\uff11\uff12".encode(), b"12", False),
        ("tokens", b"6\x00", b"6", False),
        ("lines_rstrip", b"1 2 \r\n3\n\n", b"1 2\n3", True),
        ("lines_rstrip", b" 1 2\n", b"1 2\n", False),
        ("lines_rstrip", b"1  2\n", b"1 2\n", False),
        ("lines_rstrip", b"1\n\n2\n", b"1\n2\n", False),
        ("unordered_lines", b"b\na\na \n", b"a\nb\na\n", True),
        ("unordered_lines", b"b\na\n", b"a\nb\na\n", False),
        ("float", b"1.6666667", b"1.666666666", True),
        ("float", b"5", b"5.000000000", True),
        ("float", b"1e0 x", b"1 x", True),
        ("float", b"1.67", b"1.666666666", False),
        ("float", b"nan", b"nan", False),
        ("float", b"inf", b"inf", False),
        ("float", b"1e999", b"2e999", False),
        ("float", "\uff11".encode(), b"1", False),
        ("float", b"1_0", b"10", False),
        ("float", b"0x10", b"16", False),
        ("float", b"1 2", b"1", False),
    ],
)
def test_text_modes(mode: str, output: bytes, expected: bytes, same: bool) -> None:
    assert text_matches(mode, output, expected) is same


def test_float_tolerance_is_the_larger_of_abs_and_rel() -> None:
    assert text_matches("float", b"101", b"100", rel=0.01, abs=0.0)
    assert not text_matches("float", b"101.1", b"100", rel=0.01, abs=0.5)
    assert text_matches("float", b"0.05", b"0", rel=0.01, abs=0.1)


@pytest.mark.parametrize(
    ("output", "expected", "options", "same"),
    [
        (1, 1, {}, True),
        (True, 1, {}, False),
        (1, True, {}, False),
        (1, 1.0, {}, False),
        (1.0, 1, {}, False),
        (1, 1.0, {"rel": 1e-9}, True),
        (True, 1, {"rel": 1e-9}, False),
        (0.1 + 0.2, 0.3, {}, False),
        (0.1 + 0.2, 0.3, {"abs": 1e-9}, True),
        (float("nan"), float("nan"), {"abs": 1.0}, False),
        (float("inf"), float("inf"), {}, False),
        (10**400, 10**400, {"rel": 1e-6}, True),
        (10**400, 1.0, {"rel": 1e-6}, False),
        ((1, 2), [1, 2], {}, False),
        ((1, (2,)), [1, [2]], {"tuple_as_list": True}, True),
        ([1, None, True], [1, None, True], {}, True),
        ([1, None, 1], [1, None, True], {}, False),
        ({"a": [1]}, {"a": [1]}, {}, True),
        ({"a": [1], "b": 0}, {"a": [1]}, {}, False),
        ("é", "é", {}, True),
        ("1", 1, {}, False),
        (None, 0, {}, False),
        ([], {}, {}, False),
    ],
)
def test_values_are_compared_with_their_types(
    output: Any, expected: Any, options: dict[str, Any], same: bool
) -> None:
    assert value_matches(output, expected, **options) is same
