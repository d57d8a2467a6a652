"""The final answer is found once, after the thinking part, whatever surrounds it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.extract import Extraction, Mode, after_thinking, extract


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{1}{\\sqrt{2}}"),
        ("\\fbox{3}", "3"),
        ("\\boxed {4}", "4"),
        ("\\boxed{\\boxed{5}}", "\\boxed{5}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{7}}", "7"),
        ("{ \\boxed{8}", "8"),
        ("\\\\boxed{9}", "9"),
        ("first \\boxed{1}, now \\boxed{2", "1"),
        ("<think>\\boxed{1}</think> \\boxed{2}", "2"),
        ("half a thought \\boxed{1}</think>\\boxed{2}", "2"),
        ("</think></think>\\boxed{3}", "3"),
        ("<think>\\boxed{1}</think>", None),
        ("<think>\\boxed{1}", None),
        ("\\boxed{1}<think> \\boxed{2}", "1"),
        ("the answer is 5", None),
        ("boxed{5}", None),
        ("\\boxed{5", None),
        ("", None),
    ],
)
def test_last_box(response: str, answer: str | None) -> None:
    found = extract(response, "last_box")
    assert found.answer == answer
    assert (found.reason == "") is (answer is not None)


def test_single_box_refuses_several() -> None:
    assert extract("\\boxed{1}", "single_box").answer == "1"
    assert extract("\\boxed{\\boxed{1}}", "single_box").answer == "\\boxed{1}"
    several = extract("\\boxed{1} or \\boxed{2}", "single_box")
    assert several == Extraction(None, "2 boxes where exactly one is allowed")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("I get \\boxed{4}. The answer is 5.", "4"),
        ("The answer is 5.", "5"),
        ("So 3 + 4.\nFinal answer: **1,234**", "1,234"),
        ("The final answer is $\\frac{1}{2}$. I hope it is correct.", "\\frac{1}{2}"),
        ("Of 3 pears 2 remain\n#### 2", "2"),
        ("<answer> $x+1$ </answer>", "x+1"),
        ("we find \\(x = 3\\)", "x = 3"),
        ("we find $a$ and then $b+1$.", "b+1"),
        ("so there are 12 of them", "12"),
        ("$28$ percent", "28%"),
        ("it costs $3.50", "$3.50"),
        ("nothing to see", None),
        ("unclosed \\boxed{5", None),
    ],
)
def test_lenient(response: str, answer: str | None) -> None:
    assert extract(response, "lenient").answer == answer


def test_a_run_of_boxes_is_kept() -> None:
    found = extract("roots \\boxed{2}, \\boxed{3} \\text{ and } \\boxed{5}", "last_box")
    assert (found.answer, found.run) == ("5", ("2", "3", "5"))
    assert extract("\\boxed{2} is wrong, it is \\boxed{3}", "last_box").run == ()


@given(
    st.text(alphabet="{}\\$boxedfthink<>/ 1,", max_size=300),
    st.sampled_from(["last_box", "single_box", "lenient"]),
)
def test_anything_is_answered(response: str, mode: Mode) -> None:
    found = extract(response, mode)
    assert (found.answer is None) is (found.reason != "")
    assert found.answer is None or found.answer in response + "%"


@given(st.text(alphabet="ab{}", max_size=40))
def test_a_box_holds_its_balanced_content(text: str) -> None:
    balanced = text.replace("{", "(").replace("}", ")")
    assert extract(f"x \\boxed{{{balanced}}} y", "last_box").answer == balanced


@given(st.text(max_size=50))
def test_nothing_of_the_thinking_part_is_left(thought: str) -> None:
    assert after_thinking(f"<think>{thought}</think>rest") == "rest"
