"""The overrides that make `verl.trainer.main_ppo` a run of seconds on the CPU, as Hydra takes them.

`python -m verl_cpu.overrides DATA OUTPUT WORKERS` prints them, one a line.
"""

import sys
from pathlib import Path


def small_run(data, output, workers=1, steps=2):
    """Overrides for a run on what `tiny.make` has put into a folder."""
    actor, rollout, model = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
    precision = {f"+{actor}.fsdp_config.mixed_precision.{kind}_dtype": "fp32" for kind in ("param", "reduce", "buffer")}
    values = {
        "trainer.device": "cpu",
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": workers,
        "trainer.logger": "[console]",
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": 1,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": output,
        "++ray_kwargs.ray_init.num_gpus": workers,
        "ray_kwargs.ray_init.num_cpus": 16,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "data.train_files": f"{data}/train.parquet",
        "data.val_files": f"{data}/val.parquet",
        "data.train_batch_size": 4,
        "data.max_prompt_length": 64,
        "data.max_response_length": 12,
        "data.dataloader_num_workers": 0,
        "data.filter_overlong_prompts": False,
        "data.shuffle": False,
        f"{model}.path": f"{data}/model",
        f"{model}.use_remove_padding": False,
        f"{model}.enable_gradient_checkpointing": False,
        f"+{model}.override_config.attn_implementation": "sdpa",
        f"{actor}.strategy": "fsdp2",
        f"{actor}.use_torch_compile": False,
        f"{actor}.fsdp_config.use_torch_compile": False,
        f"{actor}.ppo_mini_batch_size": 4,
        f"{actor}.ppo_micro_batch_size_per_gpu": 4,
        f"{actor}.optim.lr": 1e-2,
        f"{rollout}.name": "transformers",
        f"{rollout}.n": 4,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": 8,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 8,
        f"{rollout}.free_cache_engine": False,
        f"{rollout}.agent.num_workers": 1,
        f"{rollout}.calculate_log_probs": True,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": Path(__file__).parent / "tiny.py",
        "reward.custom_reward_function.name": "letters",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "transfer_queue.backend.SimpleStorage.total_storage_size": 1000,
        **precision,
    }
    return [f"{key}={value}" for key, value in values.items()]


if __name__ == "__main__":
    print("\n".join(small_run(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
