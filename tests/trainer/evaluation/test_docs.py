"""The page on evaluation says of every benchmark what its recipe does."""

import re
from pathlib import Path

import pytest
import yaml

from guerdon_trainer.config.recipe import recipe_names
from guerdon_trainer.evaluation.benchmark import BENCHMARKS, BenchmarkConfig, load_benchmark

PAGE = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text()
ROWS = {
    cells[0].strip("` "): [cell.strip() for cell in cells[1:]]
    for line in PAGE.splitlines()
    if len(cells := line.strip("|").split("|")) == 5 and re.match(r"\| `\w+` ", line)
}


def test_every_recipe_stands_in_the_table() -> None:
    assert sorted(ROWS) == recipe_names(BENCHMARKS)


@pytest.mark.parametrize("name", ROWS)
def test_the_table_says_what_the_recipe_does(name: str) -> None:
    data, _, n, verifier = ROWS[name]
    config = load_benchmark(name)
    assert int(n) == config.sampling.n
    assert (config.sampling.temperature, config.sampling.top_p) == (
        (0.6, 0.95) if config.sampling.n > 1 else (0.0, 1.0)
    )
    assert verifier.split(",")[0] == config.verifier.service
    if config.data.name not in ("json", "chain_sum"):
        assert data.startswith(str(config.data.name))
    assert ("lenient" in verifier) == (config.verifier.options.get("extraction") == "lenient")
    assert ("all or nothing" in verifier) == (config.verifier.options.get("reward") == "all_or_nothing")


def test_the_example_of_a_benchmark_is_one() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = BenchmarkConfig.model_validate({"name": "exam", **yaml.safe_load(example)})
    assert config.ks == [2, 4]
