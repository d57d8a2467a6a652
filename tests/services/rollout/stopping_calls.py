"""Where stop strings end a response, asked of any engine; both engines' tests run it."""

from dataclasses import replace

from guerdon_services.rollout.engine import Engine, Row
from guerdon_services.rollout.engines.stopping import decode

GREEDY = Row(
    prompt_ids=(60, 61, 62), max_new_tokens=30, temperature=0.0, top_p=1.0, top_k=0, stop=(), seed=None,
    ignore_eos=True,
)  # fmt: skip


def run(engine: Engine) -> None:
    """A stop string counts once a token after the first `min_new_tokens` completes it, and not before."""
    [whole] = engine.generate([GREEDY])
    said = [decode(engine.tokenizer, [token]) for token in whole.token_ids]
    letters = [place for place, text in enumerate(said) if len(text) == 1 and text.isascii()]
    assert len(letters) > 6, "of a text that says nothing there is nothing to learn"
    for place in letters:
        # One and two tokens long; the second also lies half before the boundary.
        for size in (1, 2):
            stop = "".join(said[place - size + 1 : place + 1])
            if len(stop) != size or "\ufffd" in stop:
                continue
            least = [max(0, place + more) for more in (-1, 0, 1)]
            rows = [replace(GREEDY, stop=(stop,), min_new_tokens=one) for one in least]
            for row, sampled in zip(rows, engine.generate(rows), strict=True):
                last = next(
                    (
                        step
                        for step in range(row.min_new_tokens, GREEDY.max_new_tokens)
                        if "".join(said[: step + 1]).endswith(stop)
                    ),
                    None,
                )
                if last is None:
                    assert (sampled.token_ids, sampled.finish_reason) == (whole.token_ids, "length")
                else:
                    assert (sampled.token_ids, sampled.finish_reason) == (whole.token_ids[: last + 1], "stop")
                    assert sampled.text == decode(engine.tokenizer, whole.token_ids[: last + 1 - size])
