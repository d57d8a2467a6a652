"""What each trainer asks, asked of a math service by hand: python examples/integrations/every_trainer.py URL

The functions are called as their trainers call them, the routes are posted to as their clients post. Every line ends
with the reward of a right answer, 1.0.
"""

import asyncio
import os
import sys
from types import SimpleNamespace
from typing import Any

import httpx

url = os.environ["GUERDON_URL"] = sys.argv[1]

from guerdon.integrations import areal, slime, trl, verifiers, verl

PROMPT, RESPONSE, ANSWER = "What is 1/2 + 1/4?", r"That is \boxed{3/4}", "0.75"


async def functions() -> dict[str, Any]:
    """The rewards that functions give."""
    verl_score = await verl.compute_score("math", RESPONSE, ANSWER, {"question": PROMPT})
    group = [
        SimpleNamespace(prompt=PROMPT, response=RESPONSE, label=ANSWER, metadata={}, remove_sample=False)
    ]
    [slime_reward] = await slime.reward(SimpleNamespace(reward_key=None), group)
    task = SimpleNamespace(prompt_text=PROMPT, model_dump=lambda mode: {"answer": ANSWER})
    [trl_reward] = await trl.reward(url)(prompts=[PROMPT], completions=[RESPONSE], answer=[ANSWER])
    return {
        "TRL": trl_reward,
        "verl": verl_score["score"],
        "slime": slime_reward,
        "verifiers": await verifiers.reward(task, SimpleNamespace(last_reply=RESPONSE)),
    }


def routes() -> dict[str, Any]:
    """The rewards that routes give."""
    with httpx.Client(base_url=url, timeout=60) as http:
        texts = {"query": [PROMPT + RESPONSE], "prompts": [PROMPT], "labels": [ANSWER]}
        sample = {"prompt": PROMPT, "response": RESPONSE, "label": ANSWER}
        message = {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": RESPONSE}],
        }
        row = {
            "responses_create_params": {"input": PROMPT},
            "response": {"output": [message]},
            "expected_answer": ANSWER,
        }
        task = {"prompt": PROMPT, "response": RESPONSE, "reward_info": {"ground_truth": ANSWER}}
        submitted = http.post("/submit_task", json=task).json()
        polled: dict[str, Any] = {"errcode": 1}
        while polled["errcode"] == 1:
            polled = http.request("GET", "/task_result", json=submitted).json()
        return {
            "OpenRLHF": http.post("/get_reward", json=texts).json()["rewards"][0],
            "slime by URL": http.post("/rm", json=sample).json(),
            "NeMo Gym": http.post("/verify", json=row).json()["reward"],
            "ROLL": polled["reward_score"],
        }


rewards = asyncio.run(functions()) | {"AReaL": areal.reward(PROMPT, RESPONSE, answer=ANSWER)} | routes()
for trainer, reward in rewards.items():
    print(f"{trainer:14} {reward}")
