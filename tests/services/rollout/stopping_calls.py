"""Where stop strings end a response, asked of any engine; both engines' tests run it."""

from dataclasses import replace

from guerdon_services.rollout.engine import Engine, Row, Sampled
from guerdon_services.rollout.engines.stopping import decode

GREEDY = Row(
    prompt_ids=(60, 61, 62), max_new_tokens=30, temperature=0.0, top_p=1.0, top_k=0, stop=(), seed=None,
    ignore_eos=True,
)  # fmt: skip


def run(engine: Engine) -> None:
    """A stop string counts once a token after the first `min_new_tokens` completes it, and not before."""
    prompt, whole, said = _telling(engine)
    greedy = replace(GREEDY, prompt_ids=prompt)
    for place, text in enumerate(said):
        if not (len(text) == 1 and text.isascii()):
            continue
        # One and two tokens long; the second also lies half before the boundary.
        for size in (1, 2):
            stop = "".join(said[place - size + 1 : place + 1])
            if len(stop) != size or "\ufffd" in stop:
                continue
            least = [max(0, place + more) for more in (-1, 0, 1)]
            rows = [replace(greedy, stop=(stop,), min_new_tokens=one) for one in least]
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


def _telling(engine: Engine) -> tuple[tuple[int, ...], Sampled, list[str]]:
    """A prompt whose greedy response holds no end token, which the least tokens would not, and many letters."""
    # 2 in the configurations of Llama and Qwen.
    ends = {2, engine.tokenizer.get_vocab()["<|end|>"]}
    for token in range(60, 120):
        [whole] = engine.generate([replace(GREEDY, prompt_ids=(token,))])
        said = [decode(engine.tokenizer, [token]) for token in whole.token_ids]
        letters = [text for text in said if len(text) == 1 and text.isascii()]
        if len(letters) > 6 and not ends & set(whole.token_ids):
            return (token,), whole, said
    raise AssertionError("of texts that say nothing there is nothing to learn")
