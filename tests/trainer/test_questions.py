from guerdon_trainer.questions import PromptStream, Question, sampling_seed


def _questions(count: int) -> list[Question]:
    return [
        Question(id=f"q{n}", prompt=str(n), references=[], metadata=None, code=None) for n in range(count)
    ]


def test_each_epoch_asks_every_question_once_in_an_order_of_its_own() -> None:
    prompts = PromptStream(_questions(10), 0)
    stream = [prompts.at(position).id for position in range(30)]
    epochs = [stream[:10], stream[10:20], stream[20:]]
    assert all(sorted(epoch) == sorted(f"q{n}" for n in range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_position_is_all_there_is_to_know() -> None:
    prompts = PromptStream(_questions(7), 3)
    whole = [prompts.at(position) for position in range(40)]
    for position in (20, 0, 39, 6, 7, 8, 1):
        assert prompts.at(position) == whole[position]
        assert PromptStream(_questions(7), 3).at(position) == whole[position]


def test_seeds_differ_by_everything_they_depend_on() -> None:
    seeds = {
        sampling_seed(run, step, question, position)
        for run in (0, 1)
        for step in (1, 2)
        for question in ("a", "b")
        for position in (0, 1)
    }
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sampling_seed(0, 1, "a", 0) == sampling_seed(0, 1, "a", 0)
