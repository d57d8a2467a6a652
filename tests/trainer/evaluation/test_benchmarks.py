"""Every recipe, on rows in its data set's own format: what the policy is asked, and what the real verifier says.

The rows are written by hand. For each there are responses with the verdict they deserve.
"""

import base64
import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guerdon.testing import StubService
from guerdon.types import ChatMessage, GenerateResult, GenerateSample, Sampling
from guerdon_trainer.config.recipe import recipe_names
from guerdon_trainer.evaluation.asking import Addresses
from guerdon_trainer.evaluation.benchmark import BENCHMARKS, load_benchmark, load_benchmark_questions
from guerdon_trainer.evaluation.run import run_evaluation

Say = Callable[..., GenerateResult]

GSM8K = [
    {
        "question": "Ann has 3 apples and buys 1,200 more. How many?",
        "answer": "3+1200=<<3+1200=1203>>1203\n#### 1,203",
    },
    {"question": "Half of 7?", "answer": "It is 7/2.\n#### 3.5"},
]
MATH500 = {
    "problem": "Compute $\\frac{1}{2}+\\frac{1}{4}$.",
    "solution": "It is $\\boxed{\\frac{3}{4}}$.",
    "answer": "\\frac{3}{4}",
    "subject": "Prealgebra",
    "level": 2,
    "unique_id": "test/prealgebra/1.json",
}
AIME2024 = {
    "id": 60,
    "problem": "Find $m+n$.",
    "solution": "...",
    "answer": "025",
    "url": "https://x",
    "year": "2024",
}
AIME2025 = {"problem": "Find $m+n$.", "answer": "70", "id": "0"}
AMC23 = {"id": 0, "answer": "27.0", "url": "https://x", "question": "How many miles?"}
MINERVA = {"question": "What is the wavelength in nm?", "answer": "0.02"}
OLYMPIAD = {
    "id": 1606,
    "question": "Determine all $x$ with $x^2=4$.",
    "solution": ["..."],
    "final_answer": ["2,-2"],
    "context": "Work over the reals.",
    "image_1": None,
    "modality": "Text-only",
    "difficulty": "Competition",
    "is_multiple_answer": True,
    "unit": None,
    "answer_type": "Numerical",
    "error": None,
    "question_type": "Open-ended",
    "subfield": "Algebra",
    "subject": "Math",
    "language": "English",
}
THEOREMQA = [
    {"Question": "Is 7 prime?", "Answer": "True", "Answer_type": "bool", "Picture": None},
    {
        "Question": "See the picture.",
        "Answer": "3",
        "Answer_type": "integer",
        "Picture": {"bytes": "...", "path": "a"},
    },
    {"Question": "Which two?", "Answer": "[1, 2]", "Answer_type": "list of integer", "Picture": None},
]
MMLU_PRO = {
    "question_id": 70,
    "question": "Which is a metal?",
    "options": ["Oxygen", "Iron", "Neon", "Sulfur", "Argon", "Helium", "Xenon", "Boron", "Carbon", "Iodine"],
    "answer": "B",
    "answer_index": 1,
    "cot_content": "",
    "category": "chemistry",
    "src": "ori",
}
SUPERGPQA = {
    "uuid": "a1b2",
    "question": "Which is the largest?",
    "options": ["1", "2", "3", "4"],
    "answer": "4",
    "answer_letter": "D",
    "discipline": "Science",
    "field": "Mathematics",
    "subfield": "Arithmetic",
    "difficulty": "easy",
    "is_calculation": False,
}
GPQA = {
    "Record ID": "rec1",
    "Question": "Which one?",
    "Correct Answer": "the right one",
    "Incorrect Answer 1": "wrong 1",
    "Incorrect Answer 2": "wrong 2",
    "Incorrect Answer 3": "wrong 3",
    "High-level domain": "Physics",
    "Subdomain": "Optics",
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'import math\n\n\ndef area(r: int) -> int:\n    """Twice r, rounded up."""\n',
    "entry_point": "area",
    "canonical_solution": "    return math.ceil(2 * r)\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n",
}
MBPP = {
    "task_id": 11,
    "text": "Write a function to add two numbers.",
    "code": "def add(a, b):\n    return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"],
    "test_setup_code": "",
    "challenge_test_list": [],
}


def _private(tests: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


LIVECODEBENCH = [
    {
        "question_title": "Sum",
        "question_content": "Add the two numbers of a line.",
        "platform": "atcoder",
        "question_id": "abc1_a",
        "contest_id": "abc1",
        "contest_date": "2025-01-04T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
        "private_test_cases": _private([{"input": "5 5\n", "output": "10\n", "testtype": "stdin"}]),
        "metadata": "{}",
    },
    {
        "question_title": "Twice",
        "question_content": "Double a number.",
        "platform": "leetcode",
        "question_id": "3700",
        "contest_id": "weekly",
        "contest_date": "2025-02-01T00:00:00",
        "starter_code": "class Solution:\n    def twice(self, x: int) -> int:\n        ",
        "difficulty": "medium",
        "public_test_cases": json.dumps([{"input": "2", "output": "4", "testtype": "functional"}]),
        "private_test_cases": _private([{"input": "-3", "output": "-6", "testtype": "functional"}]),
        "metadata": json.dumps({"func_name": "twice"}),
    },
]


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\n"


#: By benchmark: rows, and for each question the responses that are right and those that are wrong.
CASES: dict[str, tuple[list[dict[str, Any]], list[tuple[list[str], list[str]]]]] = {
    "gsm8k": (
        GSM8K,
        [
            (["\\boxed{1203}", "So 3 + 1200 = 1,203.", "#### 1203"], ["\\boxed{1204}", "I do not know"]),
            (["\\boxed{\\frac{7}{2}}", "The answer is 3.50"], ["\\boxed{7}"]),
        ],
    ),
    "math500": ([MATH500], [(["It is $\\boxed{0.75}$."], ["0.75", "\\boxed{0.7}"])]),
    "aime2024": ([AIME2024], [(["\\boxed{25}", "\\boxed{025}"], ["\\boxed{26}", "25"])]),
    "aime2025": ([AIME2025], [(["\\boxed{70}"], ["\\boxed{71}"])]),
    "amc23": ([AMC23], [(["\\boxed{27}"], ["\\boxed{28}"])]),
    "minerva": ([MINERVA], [(["\\boxed{0.02}", "\\boxed{2 \\times 10^{-2}}"], ["\\boxed{0.03}"])]),
    "olympiadbench": ([OLYMPIAD], [(["\\boxed{-2, 2}", "\\boxed{2,-2}"], ["\\boxed{2}"])]),
    "theoremqa": (
        THEOREMQA,
        [
            (["\\boxed{True}"], ["\\boxed{False}"]),
            (["\\boxed{[1, 2]}", "\\boxed{1, 2}"], ["\\boxed{[1, 3]}"]),
        ],
    ),
    "mmlu_pro": (
        [MMLU_PRO],
        [(["The answer is (B).", "Iron is. **The answer is B**"], ["The answer is (C)", "A or B", "Iron"])],
    ),
    "supergpqa": ([SUPERGPQA], [(["The answer is (D)", "Answer: D"], ["The answer is (A)"])]),
    "humaneval": (
        [HUMANEVAL],
        [
            (
                [
                    fenced("def area(r):\n    return math.ceil(2 * r)"),
                    fenced("def area(r):\n    return r + r"),
                ],
                [fenced("def area(r):\n    return 4"), "def area(r): return 2 * r", fenced("syntax error (")],
            )
        ],
    ),
    "mbpp": (
        [MBPP],
        [
            (
                [fenced("def add(a, b):\n    return a + b")],
                [fenced("def add(a, b):\n    return 3"), "no program"],
            )
        ],
    ),
    "livecodebench": (
        LIVECODEBENCH,
        [
            ([fenced("print(sum(map(int, input().split())))")], [fenced("input(); print(3)")]),
            (
                [fenced("class Solution:\n    def twice(self, x):\n        return 2 * x")],
                [fenced("class Solution:\n    def twice(self, x):\n        return 4")],
            ),
        ],
    ),
}


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prompts(name: str, folder: Path, rows: list[dict[str, Any]], *overrides: str) -> list[str]:
    """The text of each question's only turn."""
    questions = load_benchmark_questions(load_benchmark(name, overrides, written(folder, rows)))
    for question in questions:
        assert isinstance(question.prompt, list)
        assert [turn.role for turn in question.prompt] == ["user"]
    return [
        turn.content for question in questions for turn in question.prompt if isinstance(turn, ChatMessage)
    ]


def test_there_is_a_case_for_every_recipe() -> None:
    assert set(recipe_names(BENCHMARKS)) == {*CASES, "gpqa", "reasoning_gym"}


@pytest.mark.parametrize("name", CASES)
def test_the_verifier_says_of_every_response_what_it_deserves(
    name: str, verifiers: dict[str, str], saying: Say, tmp_path: Path
) -> None:
    rows, verdicts = CASES[name]
    n = max(len(right) + len(wrong) for right, wrong in verdicts)
    path = written(tmp_path, rows)
    config = load_benchmark(
        name, [f"sampling.n={n}", "sampling.temperature=1", f"folder={tmp_path / 'eval'}"], path
    )
    questions = load_benchmark_questions(config)
    assert len(questions) == len(verdicts)
    # Each question gets its right responses first, then its wrong ones over and over.
    texts = {
        f"{question.id}/{number}": [*right, *wrong * n][number]
        for question, (right, wrong) in zip(questions, verdicts, strict=True)
        for number in range(n)
    }

    def generate(sample: GenerateSample, sampling: Sampling) -> GenerateResult:
        return saying(texts[str(sample.id)])

    with StubService(generate=generate) as policy:
        urls = {"rollout": policy.url, config.verifier.service: verifiers[config.verifier.service]}
        summary = run_evaluation(config, questions, Addresses(urls), lambda count: None)
    lines = [json.loads(line) for line in (tmp_path / "eval" / "responses.jsonl").read_text().splitlines()]
    judged = {(line["question"], line["number"]): line["value"] for line in lines}
    assert summary.complete, [line for line in lines if line.get("status") != "ok"]
    for question, (right, _) in zip(questions, verdicts, strict=True):
        found = [judged[question.id, number] for number in range(n)]
        assert found == [1.0] * len(right) + [0.0] * (n - len(right)), question.id
    assert summary.accuracy is not None
    assert summary.accuracy.value == pytest.approx(
        sum(len(right) for right, _ in verdicts) / (n * len(verdicts))
    )


def test_what_the_policy_is_asked(tmp_path: Path) -> None:
    boxed = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert prompts("gsm8k", tmp_path, GSM8K)[1] == "Half of 7?" + boxed
    assert prompts("olympiadbench", tmp_path, [OLYMPIAD]) == [
        "Work over the reals.\n\nDetermine all $x$ with $x^2=4$." + boxed
    ]
    assert prompts("olympiadbench", tmp_path, [{**OLYMPIAD, "context": None}]) == [
        "Determine all $x$ with $x^2=4$." + boxed
    ]
    letter = '\n\nThink step by step, then finish with "The answer is (X)" where X is the letter of the right option.'
    assert prompts("supergpqa", tmp_path, [SUPERGPQA]) == [
        "Which is the largest?\n\nA) 1\nB) 2\nC) 3\nD) 4" + letter
    ]
    assert prompts("humaneval", tmp_path, [HUMANEVAL]) == [
        "Complete this Python function. Answer with the whole function in one fenced block.\n\n"
        f"```python\n{HUMANEVAL['prompt'].strip()}\n```"
    ]
    assert prompts("mbpp", tmp_path, [MBPP]) == [
        "Write a function to add two numbers.\n\nYour code should pass these tests:\n\n"
        "assert add(1, 2) == 3\nassert add(-1, 1) == 0\n\nAnswer with the program in one fenced block of Python."
    ]
    stdin, starter = prompts("livecodebench", tmp_path, LIVECODEBENCH)
    assert "Read the inputs from standard input" in stdin
    assert "starter code to write the solution to the problem.\n```python\nclass Solution:" in starter
    assert "standard input" not in starter


def test_options_are_shuffled_the_same_way_every_time(tmp_path: Path) -> None:
    rows = [{**GPQA, "Record ID": f"rec{number}"} for number in range(40)]
    config = load_benchmark("gpqa", [], written(tmp_path, rows))
    questions = load_benchmark_questions(config)
    assert questions == load_benchmark_questions(config)
    letters = [question.references[0] for question in questions]
    assert {"A", "B", "C", "D"} == set(letters)
    for question, letter in zip(questions, letters, strict=True):
        assert isinstance(question.prompt, list)
        assert f"\n{letter}) the right one\n" in question.prompt[0].content


def test_rows_of_a_time_are_chosen(tmp_path: Path) -> None:
    january = 'rows.where=[{field: contest_date, min: "2025-01-01", max: "2025-01-31"}]'
    assert len(prompts("livecodebench", tmp_path, LIVECODEBENCH, january)) == 1
    easy = "rows.where=[{field: difficulty, equals: medium}]"
    assert "Double a number." in prompts("livecodebench", tmp_path, LIVECODEBENCH, easy)[0]


def test_rows_come_through_the_datasets_library_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe as it stands, but for where the file lies."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    files = (
        f"data.settings={{data_files: {written(tmp_path, LIVECODEBENCH)}, cache_dir: {tmp_path / 'cache'}}}"
    )
    questions = load_benchmark_questions(load_benchmark("livecodebench", [files]))
    assert [question.id for question in questions] == ["abc1_a", "3700"]
    assert [len(question.code.tests) for question in questions if question.code] == [2, 2]


def test_a_list_of_rows_and_a_number_of_questions(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([{**AIME2025, "id": str(n)} for n in range(30)]))
    config = load_benchmark("aime2025", ["data.size=10"], tmp_path / "rows.json")
    assert len(load_benchmark_questions(config)) == 10
