"""A surrogate, a baseline and an aggregation of a user's own, trained by name in TRL."""

import torch
from support.trl.runs import make

import grpo_variants as gv


def test_a_run_by_name_takes_the_advantages_and_the_loss_of_the_parts(custom_parts, tmp_path, monkeypatch):
    trainer = make(tmp_path, "gv_tanh,surrogate.scale=0.5", max_steps=1)
    assert trainer.variant.surrogate == custom_parts.Tanh(scale=0.5)
    seen = []
    compute = type(trainer)._compute_loss

    def recorded(self, model, inputs):
        loss = compute(self, model, inputs)
        seen.append((inputs, loss.detach()))
        return loss

    monkeypatch.setattr(type(trainer), "_compute_loss", recorded)
    trainer.train()
    (inputs, loss), *_ = seen
    lengths = inputs["completion_mask"].sum(1)
    # On policy tanh(0) = 0: the value is 0 whatever the weights, and the logged advantages are those of the baseline.
    assert loss.item() == 0
    rewards = torch.tensor([sum(values) for values in zip(*trainer._logs["rewards"].values(), strict=True)])
    wanted = gv.advantages("tanh", rewards, groups=[n // 4 for n in range(8)])
    assert sorted(trainer._logs["advantages"]) == sorted(wanted.tolist())
    assert len(lengths) == 8


def test_the_gradient_of_a_run_is_that_of_the_functions(custom_parts, tmp_path):
    """One optimizer step by plain gradient descent moves the weights by the gradient of `gv.policy_loss`."""
    trainer = make(tmp_path, "gv_tanh", max_steps=1, learning_rate=0.0)
    captured = {}
    tokens = type(trainer)._tokens

    def recorded(inputs, logp, entropy, weights):
        x = tokens(trainer, inputs, logp, entropy, weights)
        if logp.requires_grad:
            logp.register_hook(lambda gradient: captured.update(gradient=gradient.clone(), x=x))
        return x

    trainer._tokens = recorded
    trainer.train()
    x = captured["x"]
    logp = x.logp.detach().requires_grad_()
    step = gv.Tokens(logp=logp, mask=x.mask, advantages=x.advantages, old_logp=x.old_logp)
    gv.policy_loss("tanh", step).loss.backward()
    torch.testing.assert_close(captured["gradient"], logp.grad, atol=1e-7, rtol=1e-5)
    assert logp.grad.abs().max() > 0
