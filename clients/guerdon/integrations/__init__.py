"""Rewards for other trainers: one module each, imported by its name; docs/integrations has a page for every one.

    trl             reward_funcs=guerdon.integrations.trl.reward("http://127.0.0.1:8101")
    verl            reward.custom_reward_function.path=pkg://guerdon.integrations.verl
    verl_process    reward.reward_manager.module.path=pkg://guerdon.integrations.verl_process
    openrlhf        --reward.remote_url http://HOST:PORT/get_reward, or the path of guerdon/integrations/openrlhf.py
    slime           --custom-rm-path guerdon.integrations.slime.reward
    verifiers       [env.taskset.task.rewards.guerdon] fn = "guerdon.integrations.verifiers:reward"
    nemo_gym        entrypoint of a resources server: guerdon.integrations.nemo_gym
    nemo_rl         register_env("guerdon", "guerdon.integrations.nemo_rl.Environment")
    skyrl           skyrl_gym.register(id="guerdon", entry_point="guerdon.integrations.skyrl:Env")
    areal           reward_fn="guerdon.integrations.areal.reward"

ROLL and others that post to a URL of their own shape need no code: every service answers them
(`guerdon_services.compat`).

Modules that a trainer imports by name read their settings from the environment: GUERDON_URL, GUERDON_SERVICE,
GUERDON_OPTIONS (JSON), GUERDON_REWARDS (a YAML file of several services), GUERDON_TOKEN, GUERDON_TIMEOUT_S,
GUERDON_RETRIES and GUERDON_COLUMNS (JSON: which column is what). Only verl_process, nemo_gym,
nemo_rl and skyrl import their trainer.
"""
