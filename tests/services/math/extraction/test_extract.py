"""The final answer is found once, after the thinking part, whatever surrounds it."""

# Responses come in several alphabets.
# ruff: noqa: RUF001

import time
import tracemalloc
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.extraction.extract import Extraction, Mode, after_thinking, extract

MODES: tuple[Mode, ...] = get_args(Mode)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed{57} is wrong, so the answer is \\boxed{58}", "58"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{1}{\\sqrt{2}}"),
        ("\\fbox{3}", "3"),
        ("\\boxed {4}", "4"),
        ("\\boxed\n{4}", "4"),
        ("$\\boxed{4}$.", "4"),
        ("**\\[ \\boxed{4} \\]**", "4"),
        ("```latex\n\\boxed{4}\n```", "4"),
        ("\\boxed{\\boxed{5}}", "\\boxed{5}"),
        ("\\boxed{1 + \\boxed{5}} since", "1 + \\boxed{5}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\left\\{ 1 \\right.}", "\\left\\{ 1 \\right."),
        ("\\boxed{7}}", "7"),
        ("{ \\boxed{8}", "8"),
        ("\\frac{1}{2 \\boxed{8}", "8"),
        ("\\begin{aligned} 1 \\\\\\boxed{3} \\end{aligned}", "3"),
        ("first \\boxed{1}, now \\boxed{2", "1"),
        ("\\boxed{1 \\boxed{2}", "2"),
        ("the answer is 5", None),
        ("boxed{5}", None),
        ("\\boxed{5", None),
        ("\\boxed(5)", None),
        ("\\boxedx{5}", None),
        ("", None),
        ("  \n", None),
    ],
)
def test_last_box(response: str, answer: str | None) -> None:
    found = extract(response, "last_box")
    assert found.answer == answer
    assert (found.reason == "") is (answer is not None)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("$\\boxed 7$", "7"),
        ("$\\boxed42$", "42"),
        ("$\\boxed 1{,}024.5 + 1$", "1{,}024.5"),
        ("$\\boxed -7$", "-7"),
        ("$\\boxed\\frac12$", "\\frac12"),
        ("$\\boxed \\dfrac{1}{\\sqrt{2}}$", "\\dfrac{1}{\\sqrt{2}}"),
        ("$\\boxed\\sqrt[3]{2}$", "\\sqrt[3]{2}"),
        ("$\\boxed\\text{yes}$", "\\text{yes}"),
        ("$\\boxed\\pi r$", "\\pi"),
        ("$\\boxed x$", "x"),
        ("\\boxed x.", "x"),
        ("in \\boxed as you asked", None),
        ("in \\boxed. So 5", None),
    ],
)
def test_a_box_without_braces_holds_the_number_or_command_that_follows(
    response: str, answer: str | None
) -> None:
    assert extract(response, "last_box").answer == answer
    assert extract(response, "single_box").answer == answer


@pytest.mark.parametrize(
    "empty", ["\\boxed{}", "\\boxed{ }", "\\fbox{\\,}", "\\boxed{~{}}", "\\boxed{\\text{ }}"]
)
def test_an_empty_box_is_no_answer(empty: str) -> None:
    assert extract(empty, "last_box").answer is None
    assert extract(f"as asked in {empty}: \\boxed{{5}}", "single_box").answer == "5"
    assert extract(f"\\boxed{{5}}, in {empty} as asked", "last_box").answer == "5"


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("\\boxed{x &lt; 5}", "x < 5"),
        ("\\boxed{f&#39;(x) &#x3e; 0}", "f'(x) > 0"),
        ("\\boxed{&amp;lt;}", "<"),
        ("\\boxed{5&nbsp;cm}", "5 cm"),
        ("\\boxed{&pi;/2}", "π/2"),
        ("\\boxed{1 & 2; 3 & x;}", "1 & 2; 3 & x;"),
        ("\\\\boxed{9}", "9"),
        ("\\\\boxed{\\\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\\\boxed{\\\\{1, 2\\\\}}", "\\{1, 2\\}"),
        ("\\\\boxed{\\\\text{a} \\\\\\\\ b}", "\\text{a} \\\\ b"),
        ("\\boxed{\\begin{matrix}1 \\\\ 2\\end{matrix}}", "\\begin{matrix}1 \\\\ 2\\end{matrix}"),
        ("\\\\boxed{\\frac{1}{2} \\\\ x}", "\\frac{1}{2} \\\\ x"),
    ],
)
def test_escapes_of_html_and_json_are_undone(response: str, answer: str) -> None:
    assert extract(response, "last_box").answer == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<think>\\boxed{1}</think> \\boxed{2}", "2"),
        ("half a thought \\boxed{1}</think>\\boxed{2}", "2"),
        ("</think></think>\\boxed{3}", "3"),
        ("<think>\\boxed{1}</think>", None),
        ("<think>\\boxed{1}", None),
        ("\\boxed{1}<think> \\boxed{2}", "1"),
        ("<THINK>\\boxed{1}</THINK>\\boxed{2}", "2"),
        ("<reasoning>\\boxed{1}</reasoning>\\boxed{2}", "2"),
        ("◁think▷\\boxed{1}◁/think▷\\boxed{2}", "2"),
        ("[THINK]\\boxed{1}[/THINK]\\boxed{2}", "2"),
        ("<|begin_of_thought|>\\boxed{1}<|end_of_thought|>\\boxed{2}", "2"),
        ("<|channel|>analysis<|message|>\\boxed{1}<|end|><|channel|>final<|message|>\\boxed{2}", "2"),
        ("<|channel|>analysis<|message|>\\boxed{1}", None),
    ],
)
@pytest.mark.parametrize("mode", ["last_box", "single_box", "lenient"])
def test_only_what_follows_the_thinking_part_counts(response: str, answer: str | None, mode: Mode) -> None:
    assert extract(response, mode).answer == answer


def test_single_box_refuses_several() -> None:
    assert extract("\\boxed{1}", "single_box").answer == "1"
    assert extract("\\boxed{\\boxed{1}}", "single_box").answer == "\\boxed{1}"
    several = extract("\\boxed{1} or \\boxed{2}", "single_box")
    assert several == Extraction(None, "2 boxes where exactly one is allowed")
    assert extract("\\boxed{1} or \\boxed{2", "single_box").answer is None
    assert extract("\\boxed{1} or \\boxed 2", "single_box").answer is None


@pytest.mark.parametrize(
    "response",
    [
        "<think>t</think>\\boxed{5}",
        "<think></think>\\boxed{5}",
        "\n<think>is it \\boxed{4}?</think>\n\nSo $x = \\boxed{5}$.\n",
        "<think>t</think> **\\fbox{5}**!",
        "<think>t</think> \\[\\boxed{5}\\]<|im_end|>",
        "<think>t</think> \\begin{align*} x &= \\boxed{5} \\end{align*}",
        "<think>t</think> <answer>\\boxed{5}</answer>",
        "<think>t</think> 所以答案是 \\boxed{5}。",
        "the template opened it</think> \\boxed{5}",
    ],
)
def test_strict_accepts_thought_then_one_box_at_the_end(response: str) -> None:
    assert extract(response, "strict") == Extraction("5")


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("\\boxed{5}", "0 closing think tags where exactly one is required"),
        ("<think>t \\boxed{5}", "0 closing think tags where exactly one is required"),
        ("<think>t</think>s</think>\\boxed{5}", "2 closing think tags where exactly one is required"),
        ("Hm. <think>t</think>\\boxed{5}", "a thinking part begins after the start of the response"),
        ("<think>t<think>s</think>\\boxed{5}", "a thinking part begins after the start of the response"),
        ("t</think><think>\\boxed{5}", "a thinking part begins after the start of the response"),
        ("<think>t</think>It is 5.", "0 boxes where exactly one is required"),
        ("<think>t</think>\\boxed{}", "0 boxes where exactly one is required"),
        ("<think>t</think>\\boxed{5}, \\boxed{6}", "2 boxes where exactly one is required"),
        ("<think>t</think>\\boxed{5}, \\boxed{6", "2 boxes where exactly one is required"),
        ("<think>t</think>\\boxed{5", "no complete \\boxed{} after the thinking part"),
        ("<think>t</think>\\boxed{5} cm", "text follows the box"),
        ("<think>t</think>\\boxed{5}." + "!" * 500, "text follows the box"),
        ("<think>t</think> ", "nothing follows the thinking part"),
        (" ", "empty response"),
    ],
)
def test_strict_refuses_any_other_form(response: str, reason: str) -> None:
    assert extract(response, "strict") == Extraction(None, reason)


@pytest.mark.parametrize(
    ("response", "run"),
    [
        ("roots \\boxed{2}, \\boxed{3} \\text{ and } \\boxed{5}", ("2", "3", "5")),
        ("$\\boxed{A}$ or $\\boxed{B}$", ("A", "B")),
        ("\\boxed{2}，\\boxed{3}", ("2", "3")),
        ("$x = \\boxed{2}$, $y_1 = \\boxed{3}$", ("2", "3")),
        ("\\boxed{a &lt; 1}; \\boxed{b}", ("a < 1", "b")),
        ("\\boxed{1} no. \\boxed{2} and \\boxed{3}", ("2", "3")),
        ("\\boxed{2} is wrong, it is \\boxed{3}", ()),
        ("\\boxed{2}\n\n\\boxed{2}", ()),
    ],
)
def test_a_run_of_boxes_is_kept(response: str, run: tuple[str, ...]) -> None:
    assert extract(response, "last_box").run == run


@given(st.text(alphabet="{}\\$boxedfthink<>/ 1,", max_size=300), st.sampled_from(MODES))
def test_anything_is_answered(response: str, mode: Mode) -> None:
    found = extract(response, mode)
    assert (found.answer is None) is (found.reason != "")
    assert found.answer is None or found.answer.strip()


@given(st.text(alphabet="ab{}", min_size=1, max_size=40))
def test_a_box_holds_its_balanced_content(text: str) -> None:
    balanced = text.replace("{", "(").replace("}", ")")
    assert extract(f"x \\boxed{{{balanced}}} y", "last_box").answer == balanced


@given(st.text(max_size=50).filter(lambda thought: "<" not in thought))
def test_nothing_of_the_thinking_part_is_left(thought: str) -> None:
    assert after_thinking(f"<think>{thought}</think>rest") == "rest"


NOISE = st.lists(
    st.sampled_from(
        [
            "$",
            "$$",
            "**",
            "_",
            " ",
            "\n",
            "\\[",
            "\\]",
            "\\(",
            "\\)",
            "`",
            "```\n",
            ".",
            "。",
            "{",
            "}",
            "\\\\",
            "\\,",
        ]
    ),
    max_size=8,
).map("".join)


@given(NOISE, NOISE, st.sampled_from(["7", "\\frac{1}{2}", "\\{1, 2\\}", "(0, 1]", "\\text{no}"]))
def test_markup_around_the_box_changes_nothing(before: str, after: str, content: str) -> None:
    response = f"So {before} \\boxed{{{content}}}{after}"
    # An open brace before the box may close after it: the box is the same.
    assert extract(response, "last_box").answer == content
    assert extract(response, "lenient").answer == content
    assert extract(f"<think>\\boxed{{0}}</think>{response}", "single_box").answer == content


HOSTILE = [
    *[
        "$",
        "$$",
        "\\boxed{",
        "\\boxed{1},",
        "\\boxed{}",
        "\\boxed ",
        "\\boxed\\frac{",
        "{",
        "}",
        "{}",
        "\\",
        "\\{",
    ],
    *[
        "answer is ",
        "answer to ",
        "the answer ",
        "答案",
        "故选",
        "solution: ",
        "\n",
        " ",
        "so ",
        "so\n",
        "Thus x is ",
    ],
    *[
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "#### ",
        "A: ",
        "A: 1\n",
        "<<",
        "<<1>>",
        "<|a|>",
        "**",
        "`",
    ],
    *[
        "1",
        "1,",
        "1.",
        "1/",
        "1:",
        "1 or ",
        "$1 ",
        "$a",
        "=",
        "is ",
        "\\(",
        "\\[",
        "&lt;",
        "&#",
        "\\text{",
        "(A) ",
    ],
]


@pytest.mark.parametrize("fragment", HOSTILE)
def test_a_megabyte_of_anything_takes_little_time(fragment: str) -> None:
    repeated = fragment * (1_000_000 // len(fragment))
    started = time.process_time()
    for response in (
        repeated,
        f"The answer is {repeated}",
        f"\\boxed{{{repeated}}}",
        f"{repeated}\\boxed{{7}}",
    ):
        for mode in MODES:
            extract(response, mode)
    assert time.process_time() - started < 16  # a second each, on a slow machine


def test_boxes_in_boxes_take_no_memory_beyond_the_text() -> None:
    nested = "\\boxed{" * 60_000 + "42" + "}" * 60_000
    tracemalloc.start()
    extract(nested, "last_box")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * len(nested)


@given(st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=6).map("".join), st.sampled_from(MODES))
def test_mixtures_of_hostile_fragments_are_answered(fragment: str, mode: Mode) -> None:
    started = time.process_time()
    extract(fragment * (20_000 // len(fragment)), mode)
    assert time.process_time() - started < 5
