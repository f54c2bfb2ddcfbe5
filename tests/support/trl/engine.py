"""vLLM as TRL 1.16 calls it, on the tiny model: TRL's own client code runs, only the engine behind it is a stand-in.

vLLM itself is not needed: `LLM`, `SamplingParams` and the server's completions route are replaced, with the signatures
that TRL uses and vLLM's rules (a temperature of 0 is greedy and draws one response; log-probabilities are those of the
processed distribution, after allowed tokens, temperature and top_p).
"""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient


@dataclass
class SamplingParams:
    """The fields that TRL passes; an unknown one is a TypeError, as with vLLM."""

    n: int = 1
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 16
    logprobs: int | None = None
    seed: int | None = None
    stop_token_ids: list | None = None
    allowed_token_ids: list | None = None

    def __post_init__(self):
        if self.temperature < 1e-5 and self.n > 1:
            raise ValueError(f"n must be 1 when using greedy sampling, got {self.n}.")


@dataclass
class Engine:
    """Draws from a model token by token, and remembers what it was asked for; `error` is added to what it reports."""

    model: object = None
    ends: tuple = (0,)
    error: float = 0.0
    asked: list = field(default_factory=list)

    def complete(self, prompt, params):
        ids, logprobs = [], []
        ends = {*self.ends, *(params.stop_token_ids or ())}
        while len(ids) < params.max_tokens and not (ids and ids[-1] in ends):
            with torch.no_grad():
                logits = self.model(torch.tensor([prompt + ids])).logits[0, -1].float()
            token, logprob = draw(logits, params)
            ids.append(token)
            logprobs.append(logprob + self.error)
        return ids, logprobs

    def respond(self, prompts, params):
        self.asked.append((prompts, params))
        return [[self.complete(prompt, params) for _ in range(params.n)] for prompt in prompts]

    # LLM, for colocate mode

    def generate(self, prompts, sampling_params, use_tqdm):
        ids = [row["prompt_token_ids"] for row in prompts]
        answers = self.respond(ids, sampling_params)
        return [
            SimpleNamespace(prompt_token_ids=prompt, outputs=[output(*one) for one in several])
            for prompt, several in zip(ids, answers, strict=True)
        ]

    def reset_prefix_cache(self):
        pass


def draw(logits, params):
    """A token and its log-probability in the processed distribution."""
    if params.temperature < 1e-5:
        return int(logits.argmax()), 0.0
    if params.allowed_token_ids:
        allowed = torch.tensor(params.allowed_token_ids)
        logits = torch.full_like(logits, -math.inf).index_copy(0, allowed, logits[allowed])
    probabilities = (logits / params.temperature).softmax(-1)
    ordered, order = probabilities.sort(descending=True)
    outside = ordered.cumsum(0) - ordered >= params.top_p
    kept = probabilities.index_fill(0, order[outside], 0.0)
    kept = kept / kept.sum()
    token = int(torch.multinomial(kept, 1))
    return token, math.log(kept[token])


def output(ids, logprobs):
    scored = [{t: SimpleNamespace(logprob=p, rank=1)} for t, p in zip(ids, logprobs, strict=True)]
    return SimpleNamespace(token_ids=ids, logprobs=scored)


class Server(VLLMClient):
    """TRL's client of a vLLM server whose completions route is an engine in this process."""

    def __init__(self, engine):
        self.engine, self.model, self.base_url = engine, "tiny", "http://server"

    def _post(self, url, json):
        assert url == "http://server/v1/completions"
        names = SamplingParams.__dataclass_fields__
        params = SamplingParams(**{k: v for k, v in json.items() if k in names})
        choices = []
        for prompt, several in zip(json["prompt"], self.engine.respond(json["prompt"], params), strict=True):
            for ids, logprobs in several:
                scored = {
                    "tokens": [f"token_id:{t}" for t in ids],
                    "token_logprobs": logprobs,
                    "top_logprobs": [None] * len(ids),
                }
                choices.append({"prompt_token_ids": prompt, "token_ids": ids, "logprobs": scored})
        return {"choices": choices}

    def update_named_params(self, metadata, params):
        for _ in params:
            pass

    def reset_prefix_cache(self):
        pass

    def get_server_info(self):
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}


def behind_trl(monkeypatch, engine):
    """Let `use_vllm=True` mean this engine, in both of TRL's modes."""

    def start(generation):
        engine.model = generation.model
        if generation.mode == "server":
            generation.vllm_client = Server(engine)
            return
        generation.llm = engine
        generation._llm_weights_sleeping = False
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=lambda weights: None))
        executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        engine.llm_engine = SimpleNamespace(model_executor=executor)

    monkeypatch.setattr(vllm_generation.VLLMGeneration, "_init_vllm", start)
    monkeypatch.setattr(vllm_generation, "SamplingParams", SamplingParams, raising=False)
    return engine
