"""A response that boxes nothing may name its answer in a tag, in a marked line, in words, or by ending with it."""

# Answers are named in many languages.
# ruff: noqa: RUF001

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.extraction.extract import extract
from guerdon_services.math.extraction.unboxed import unboxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>42</answer>", "42"),
        ("<answer> $x+1$ </answer>", "x+1"),
        ("<ANSWER>\n$$\nx^2\n$$\n</ANSWER>", "x^2"),
        ("<final_answer>B</final_answer>", "B"),
        ("<answer>x < 5</answer>", "x < 5"),
        ("<answer>$2$ and $3$</answer>", "2 and 3"),
        ("<answer>The answer is 5.</answer>", "5"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("cut by a stop string <answer>42", "42"),
    ],
)
def test_tags(text: str, answer: str) -> None:
    assert unboxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Of 3 pears 2 remain\n#### 2", "2"),
        ("#### 1,234", "1,234"),
        ("#### **$\\frac{1}{2}$**", "\\frac{1}{2}"),
        ("#### \\$72", "\\$72"),
        ("#### 42 apples", "42"),
        ("#### Step 2: find x\nWe get 5.", "5"),
        ("#### Step 2: find x\nWe get 5.\nThe answer is 6.", "6"),
        ("3 + 36 = <<3+36=39>>39\nA: 39", "39"),
        ("Which?\nA: 5\nB: 6\nC: 7\nThe answer is B.", "B"),
        ("答：一共12个。", "12"),
    ],
)
def test_marked_lines(text: str, answer: str) -> None:
    assert unboxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 5.", "5"),
        ("So the answer to the last question is therefore 5.", "5"),
        ("The final answer would then be 5", "5"),
        ("Answer: 3.14.", "3.14"),
        ("**Answer:** 42", "42"),
        ("ANSWER = 42", "42"),
        ("Ans. 1: 7", "7"),
        ("The answer is: `42`", "42"),
        ("The answer is:\n```\n42\n```", "42"),
        ('{"reasoning": "2 and 3", "answer": "42"}', "42"),
        ("So 3 + 4.\nFinal answer: **1,234**", "1,234"),
        ("**Final Answer**\n\n42", "42"),
        ("## Final Answer:\n\n$$x+1$$\n", "x+1"),
        ("The answer is\n\\[\n\\frac{1}{2}\n\\]\nDone in 3 steps.", "\\frac{1}{2}"),
        ("The final answer is $\\frac{1}{2}$. I hope it is correct.", "\\frac{1}{2}"),
        ("Final Answer: the largest $n$ is 34.", "34"),
        ("The answer is \\(\\frac{1}{2}\\).", "\\frac{1}{2}"),
        ("The answer is \\frac{1}{2}.", "\\frac{1}{2}"),
        ("The answer is 5 because 2+3=5.", "5"),
        ("The answer is 42 (see step 3).", "42"),
        ("The answer is 3.\n\n**Note**: there are 5 ways to see it.", "3"),
        ("The answer is 5 apples.", "5"),
        ("The answer is $1,234.50 per year.", "$1,234.50"),
        ("The answer is 15 percent.", "15%"),
        ("The answer is $15$ percent of it", "15%"),
        ("The answer is 42!", "42"),
        ("The answer is $5! = 120$.", "5! = 120"),
        ("The answer is the interval [1, 2].", "[1, 2]"),
        ("Answer: [0, 1)", "[0, 1)"),
        ("Answer: ]0, 1[", "]0, 1["),
        ("Answer: x &lt; 5", "x < 5"),
        ("Answer: 2x + 3", "2x + 3"),
        ("Answer: √2/2", "√2/2"),
        ("Answer: 3 1/2 cups", "3 1/2"),
        ("Answer: .5", ".5"),
        ("Answer: 0.333...", "0.333..."),
        ("The answer is 2**3.", "2**3"),
        ("The answer is 1.2 × 10^5", "1.2 × 10^5"),
        ("The answer is −5.", "−5"),
        ("The answer is x=2 and y=3.", "x=2 and y=3"),
        ("The solutions are $2$, $3$ and $5$.", "2, 3 and 5"),
        ("The solution to this is $x \\in [0, 1)$", "x \\in [0, 1)"),
        ("The solution is as follows: first add 3. We get 12.", "12"),
        ("Solution: add 3 and 4 to get 7", "7"),
        ("The plans are 3. We take 4.", "4"),
        ("The answer is Alice.", "Alice"),
        ("The answer is no solution.", "no solution"),
        ("The answer is No, it is impossible for all 3.", "No"),
        ("The answer is not 5. The total is 6.", "6"),
        ("The answer is 5. My answer is correct.", "5"),
        ("The answer is 5.<|im_end|>\n<|im_start|>user\nAnd 7?", "5"),
        ("&quot;Answer&quot;: \\\\( \\\\frac{1}{2} \\\\)", "\\frac{1}{2}"),
    ],
)
def test_english_words(text: str, answer: str) -> None:
    assert unboxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The correct answer is (B).", "(B)"),
        ("The correct option is **C**", "C"),
        ("The answer is option B because 2 < 3.", "B"),
        ("The answer is B. 42", "B. 42"),
        ("The answer is (B) 42", "(B) 42"),
        ("Answer: C", "C"),
        ("Option A is 5. Option B is correct.", "B"),
        ("(C) is the correct answer.", "C"),
        ("\n(B)", "(B)"),
        ("The answer is a line.", "a line"),
    ],
)
def test_choices(text: str, answer: str) -> None:
    assert unboxed(text) == answer


@pytest.mark.parametrize(
    "hedge",
    ["57 or 58", "57 or maybe 58", "$57$ or $58$", "$57$ or 58", "57, 58 or 59", "either 57 or else 58"],
)
def test_hedges_stay_whole(hedge: str) -> None:
    answer = unboxed(f"The answer is {hedge}.")
    assert answer is not None
    assert "57" in answer
    assert "58" in answer
    assert " or " in answer


SAID = [
    "The answer is {}.", "Answer: {}", "Final answer: **{}**", "答案是 {}。", "答案是{}。", "答案为：{}", "答案：{}",
    "故答案为：{}．", "最终答案是**{}**。", "因此，答案应该是{}。", "所以，它的值为 {}。", "综上，面积等于{}。",
    "La réponse finale est {}.", "Réponse : {}", "Die Antwort ist {}.", "Die Antwort lautet {}.", "Antwort: {}",
    "La respuesta es {}.", "Respuesta: {}", "Ответ: {}.", "Окончательный ответ — {}", "Ответ равен {}",
    "答えは {} です。", "答えは{}です。", "答え：{}", "よって、求める値は{}である。", "정답은 {}입니다.",
    "답은 {}입니다.", "정답: {}", "따라서 답은 {}이다.", "A resposta é {}.", "La risposta è {}.", "Đáp án là {}.",
    "Jawabannya adalah {}.", "الإجابة هي {}", "उत्तर: {}", "Het antwoord is {}.", "Odpowiedź: {}", "Cevap: {}",
]  # fmt: skip


@pytest.mark.parametrize("said", SAID)
def test_languages(said: str) -> None:
    for value in ("42", "-3.5", "1/2", "$\\frac{1}{2}$", "\\(x + 1\\)"):
        text = "We had 7 at first, 8 later.\n" + said.format(value)
        assert unboxed(text) == value.strip("$").removeprefix("\\(").removesuffix("\\)")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("故选 B", "B"),
        ("故选：B。", "B"),
        ("应选 (C)。", "(C)"),
        ("所以，选D。", "D"),
        ("答案选B", "B"),
        ("因此选项B正确", "B"),
        ("选两个数有 10 种方法。", "10"),
        ("所以小明一共有12个苹果。", "12"),
        ("答案是：15 和 20", "15 and 20"),
        ("Ответ: 12 км/ч.", "12"),
        ("答えは x=5 です。", "x=5"),
    ],
)
def test_choices_and_units_in_other_languages(text: str, answer: str) -> None:
    assert unboxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("18", "18"),
        ("[18]", "18"),
        ("- 18", "18"),
        ("-18", "-18"),
        ("[0,1)", "[0,1)"),
        ("y = 2x + 3", "y = 2x + 3"),
        ("Then\n3 x 4 = 12", "12"),
        ("so there are 12 of them", "12"),
        ("The area of $ABC$ is 12 cm².", "12"),
        ("Therefore $f(3)$ is equal to 9", "9"),
        ("So the total is 12 apples, 3 per child.", "12"),
        ("So the total is 12. Then we add 3. That makes 15.", "15"),
        ("Thus, x equals pi/2.", "pi/2"),
        ("Solving, x is 4", "4"),
        ("we find \\(x = 3\\)", "x = 3"),
        ("we find $a$ and then $b+1$.", "b+1"),
        ("so $x = 4$ where $n$ is as above", "x = 4"),
        ("so $x=1$, $x=2$ or $x=3$.", "x=1, x=2 or x=3"),
        ("so $x = \\frac34$.\n\nStep 2 above shows it.", "x = \\frac34"),
        ("\\[\\begin{aligned} x &= a+b \\\\ &= 5c \\end{aligned}\\]", "5c"),
        ("$28$ percent", "28%"),
        ("that is 28 percent", "28%"),
        ("it costs $3.50", "$3.50"),
        ("He paid $5 and got $3 back, so $2 remain.", "$2"),
        ("it is 1.234,56 euros", "1.234,56"),
        ("written as \\frac{63}{400} in x^{12}", None),
        ("nothing to see", None),
        ("---", None),
        ("", None),
    ],
)
def test_without_words_the_last_value_counts(text: str, answer: str | None) -> None:
    assert unboxed(text) == answer


def test_lenient_prefers_a_box_and_reads_no_words_beside_an_unfinished_one() -> None:
    assert extract("I get \\boxed{4}. The answer is 5.", "lenient").answer == "4"
    assert extract("The answer is 5: \\boxed{5", "lenient").answer is None
    assert extract("I write it in \\boxed{}: the answer is 7.", "lenient").answer == "7"
    assert extract("The answer is 5.", "last_box").answer is None
    assert extract("nothing", "lenient").reason == "no answer found"


def test_what_is_long_gone_is_not_read() -> None:
    assert unboxed("The answer is 5." + " word" * 10_000) is None


ALPHABET = st.text(alphabet="$\\()[]{}.,:;=<>/*_#`&% \n\x00İ0123aAxé答案是选Ответ", max_size=200)
WORDS = st.lists(
    st.sampled_from(
        ["answer", " is ", "so ", "$", "\\[", "\n", "or", "5", "$x$", "\\frac12", "B", ".", "<answer>", "%"]
    )
).map("".join)


@given(st.one_of(ALPHABET, WORDS, st.text(max_size=200)))
def test_anything_is_read(text: str) -> None:
    answer = unboxed(text)
    assert answer is None or answer == answer.strip() != ""


MARKUP = st.sampled_from(
    ["{}", "**{}**", "`{}`", '"{}"', "${}$", "\\({}\\)", "$${}$$", "\n\n{}\n", "*{}*", " {} "]
)


@given(
    st.sampled_from(["The answer is {}.", "Final answer: {}", "Therefore, the answer is {}\n", "答案是{}。"]),
    MARKUP,
    st.one_of(st.integers().map(str), st.sampled_from(["1/2", "2x + 3", "(1, 2)", "\\sqrt{2}", "x = 5"])),
)
def test_markup_changes_nothing(said: str, markup: str, value: str) -> None:
    assert unboxed("It was 7.\n" + said.format(markup.format(value))) == value


@pytest.mark.parametrize(
    "text",
    [
        "Η απάντηση δεν είναι 42.",
        "Ответ не равен 42.",
        "Ответ: не 42.",
        "La respuesta no es 42.",
        "La réponse n'est pas 42.",
        "A resposta não é 42.",
        "La risposta non è 42.",
        "Die Antwort ist nicht 42.",
        "Odpowiedź nie jest 42.",
        "Het antwoord is niet 42.",
        "The answer does not equal 42.",
    ],
)
def test_what_the_answer_is_not_is_no_answer_in_any_language(text: str) -> None:
    assert unboxed(text) is None
