"""The rollout engine `transformers`: one Ray actor a replica, which samples with the model on the CPU.

What is sampled depends on the prompt and on how often it was drawn, never on the replica or on the order of requests:
a run with two workers sees the same responses as a run with one.
"""

import os
from collections import Counter

import ray
import torch
from verl.workers.rollout import base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "transformers"
DRAWS = "verl_cpu_draws"


class Draws:
    """How often each prompt was drawn, shared by all replicas."""

    def __init__(self):
        self.seen = Counter()

    def next(self, prompt):
        self.seen[prompt] += 1
        return self.seen[prompt]


class Server:
    """Samples responses; its weights are those of the last update."""

    def __init__(self, path, length):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.length, self.step = length, 0
        self.draws = ray.remote(Draws).options(name=DRAWS, num_cpus=0, get_if_exists=True).remote()

    async def generate(self, request_id, prompt_ids, sampling_params, **kwargs):
        prompt = tuple(int(token) for token in prompt_ids)
        draw = await self.draws.next.remote(prompt)
        generator = torch.Generator().manual_seed(hash((*prompt, draw)) % (1 << 31))
        length = sampling_params.get("max_tokens") or self.length
        tokens, logps = self.sample(prompt, length, sampling_params.get("temperature", 1.0), generator)
        return TokenOutput(
            token_ids=tokens,
            log_probs=logps if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            extra_fields={"global_steps": self.step},
        )

    @torch.no_grad()
    def sample(self, prompt, length, temperature, generator):
        tokens, logps, cache = [], [], None
        ids = torch.tensor([prompt])
        while len(tokens) < length and self.model.config.eos_token_id not in tokens:
            out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache, logp = out.past_key_values, (out.logits[0, -1].float() / (temperature or 1.0)).log_softmax(-1)
            greedy = not temperature
            ids = logp.argmax()[None] if greedy else torch.multinomial(logp.exp(), 1, generator=generator)
            tokens.append(int(ids))
            logps.append(float(logp[ids]))
            ids = ids[None]
        return tokens, logps

    async def update_weights(self, named, adapter=None, global_steps=None):
        if adapter is None:
            found = self.model.load_state_dict(dict(named), strict=False)
        else:
            found = self.load_adapter(dict(named), adapter)
        assert named
        assert not found.unexpected_keys, found
        self.step = self.step if global_steps is None else global_steps

    def load_adapter(self, named, adapter):
        from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict

        if not isinstance(self.model, PeftModel):
            kept = {key: adapter[key] for key in ("r", "lora_alpha", "target_modules")}
            self.model = get_peft_model(self.model, LoraConfig(**kept)).eval()
        return set_peft_model_state_dict(self.model, named)

    async def set_global_steps(self, step):
        self.step = step

    async def nothing(self, *args, **kwargs):
        return None

    wake_up = sleep = clear_kv_cache = abort_all_requests = resume_generation = nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing


def server_name(rank):
    return f"verl_cpu_server_{rank}"


class Replica(RolloutReplica):
    async def launch_servers(self):
        options = {"name": server_name(self.replica_rank), "num_cpus": 0}
        server = ray.remote(Server).options(**options).remote(self.model_config.path, self.config.response_length)
        await server.nothing.remote()
        self.servers, self._server_handle, self._server_address = [server], server, options["name"]


class ServerAdapter(BaseRollout):
    """The worker's side: hands new weights to the replica of its own rank (no tensor parallelism)."""

    def __init__(self, config, model_config, device_mesh, replica_rank=-1, **kwargs):
        super().__init__(config, model_config, device_mesh)
        self.rank = int(os.environ.get("RANK", 0))

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(
        self, weights, wire_format="named_tensors", global_steps=None, peft_config=None, base_sync_done=True
    ):
        # Every rank has to walk the weights: gathering a sharded parameter is a collective.
        named = [(name, value.detach().float().clone()) for name, value in weights]
        if base_sync_done:  # the base below an adapter is what the server has loaded already
            server = ray.get_actor(server_name(self.rank))
            await server.update_weights.remote(named, adapter=peft_config, global_steps=global_steps)


base._ROLLOUT_REGISTRY[(NAME, "async")] = "verl_cpu.rollout.ServerAdapter"
RolloutReplicaRegistry.register(NAME, lambda: Replica)
