"""GRPO with TRL, rewarded by a math service: python examples/integrations/trl_grpo.py URL [MODEL [STEPS]]"""

import sys

import torch
from datasets import Dataset
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from guerdon.integrations.trl import reward

url = sys.argv[1]
model = sys.argv[2] if len(sys.argv) > 2 else "HuggingFaceTB/SmolLM2-135M-Instruct"
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 5

rows = Dataset.from_list([{"prompt": f"What is {n}+{n}? ", "answer": str(2 * n)} for n in range(16)])
trainer = GRPOTrainer(
    model,
    reward_funcs=reward(url, references="answer", name="math"),  # type: ignore[arg-type]
    args=GRPOConfig(
        output_dir="runs/trl",
        max_steps=steps,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=rows,
)
trainer.train()
for entry in trainer.state.log_history:
    if "rewards/math/mean" in entry:
        print(entry["step"], entry["rewards/math/mean"], entry["rewards/math/without"])
