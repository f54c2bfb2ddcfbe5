#!/usr/bin/env bash
# LoRA with verl, on any variant of the family.
#
#   examples/verl_lora.sh 'dapo,kl=k3,kl.beta=0.001' [overrides of verl]
#       One GPU (about 24 GB), `pip install ".[verl]" vllm`, and a data set in verl's format in $DATA:
#       train.parquet and test.parquet with data_source, prompt, reward_model (verl's data preparation writes them).
#   examples/verl_lora.sh --cpu-smoke rloo [overrides]
#       The same, two steps on a model of 20 thousand parameters that it makes: no GPU, no download, one or two minutes.
#   examples/verl_lora.sh --print [--cpu-smoke] SPEC [overrides]
#       Only print verl's overrides, one a line.
#
# Environment: PYTHON (python), MODEL (Qwen/Qwen2.5-1.5B-Instruct), DATA (data/gsm8k), OUT (runs/verl/<variant>), GPUS (1).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python}
print=0 smoke=0
while [[ ${1:-} == --* ]]; do
  case $1 in
    --print) print=1 ;;
    --cpu-smoke) smoke=1 ;;
    *) echo "unknown option $1; see the head of $0" >&2; exit 2 ;;
  esac
  shift
done
spec=${1:?give a variant, for example: $0 --cpu-smoke rloo}
shift
gpus=${GPUS:-1}

# The variant: estimator, loss, aggregation, KL, clip and filter, as one command prints them.
command="from grpo_variants.cli.app import main; main()"
variant=$("$python" -c "$command" translate "$spec" --to verl)
eval "variant=($(printf '%s\n' "$variant" | grep -v '^#'))"
out=${OUT:-$root/runs/verl/$("$python" "$root/examples/run_folder.py" "$spec")}

lora=(
  actor_rollout_ref.model.lora_rank=32
  actor_rollout_ref.model.lora_alpha=64
  actor_rollout_ref.model.target_modules=all-linear
)

if ((smoke)); then
  # A platform, a rollout engine and a model for the CPU, from the tests.
  export PYTHONPATH="$root/tests/verl${PYTHONPATH:+:$PYTHONPATH}"
  data=${DATA:-$root/runs/verl_data}
  eval "$("$python" -m verl_cpu.setup "$data")"
  mapfile -t setting < <("$python" -m verl_cpu.overrides "$data" "$out" "$gpus")
else
  data=${DATA:-$root/data/gsm8k}
  setting=(
    data.train_files="$data/train.parquet"
    data.val_files="$data/test.parquet"
    data.train_batch_size=64
    data.max_prompt_length=512
    data.max_response_length=1024
    actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen2.5-1.5B-Instruct}"
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.model.enable_gradient_checkpointing=True
    actor_rollout_ref.actor.strategy=fsdp2
    actor_rollout_ref.actor.optim.lr=2e-5
    actor_rollout_ref.actor.ppo_mini_batch_size=64
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n=8
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    actor_rollout_ref.rollout.load_format=safetensors
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16
    trainer.logger=[console]
    trainer.nnodes=1
    trainer.n_gpus_per_node="$gpus"
    trainer.total_epochs=1
    trainer.test_freq=20
    trainer.save_freq=100
    trainer.default_local_dir="$out"
  )
fi

overrides=("${setting[@]}" "${lora[@]}" "${variant[@]}" "$@")
if ((print)); then
  printf '%s\n' "${overrides[@]}"
else
  exec "$python" -m verl.trainer.main_ppo "${overrides[@]}"
fi
