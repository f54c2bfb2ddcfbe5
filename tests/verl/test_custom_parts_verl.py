"""A surrogate, a baseline and an aggregation of a user's own, by name in verl's registries."""

import grpo_variants_verl
import torch
from support.verl_stock_loss import actor, batch
from verl.trainer.ppo import core_algos

import grpo_variants as gv


def test_the_estimator_and_the_loss_of_that_name(custom_parts, monkeypatch):
    monkeypatch.setattr(core_algos, "ADV_ESTIMATOR_REGISTRY", dict(core_algos.ADV_ESTIMATOR_REGISTRY))
    monkeypatch.setattr(core_algos, "POLICY_LOSS_REGISTRY", dict(core_algos.POLICY_LOSS_REGISTRY))
    assert "gv_tanh" in grpo_variants_verl.register()
    tensors = batch()
    mask = tensors["response_mask"]
    rewards = torch.zeros_like(tensors["old_log_prob"])
    rewards[:, 0] = torch.tensor([0.0, 1.0, 4.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    index = ["a", "a", "a", "b", "b", "b"]
    found, _ = core_algos.get_adv_estimator_fn("gv_tanh")(token_level_rewards=rewards, response_mask=mask, index=index)
    wanted = gv.advantages("tanh", rewards.sum(1), groups=index)
    torch.testing.assert_close(found, wanted.unsqueeze(1) * mask)

    logp = tensors["log_prob"].clone().requires_grad_()
    step = {"batch_num_tokens": mask.sum().item(), "global_batch_size": 6, "dp_size": 1}
    loss, _ = core_algos.get_policy_loss_fn("gv_tanh")(
        **{**tensors, "log_prob": logp}, loss_agg_mode="token-mean", config=actor("gv_tanh", step)
    )
    loss.backward()
    own = tensors["log_prob"].clone().requires_grad_()
    x = gv.Tokens(logp=own, old_logp=tensors["old_log_prob"], mask=mask, advantages=tensors["advantages"])
    out = gv.policy_loss("tanh", x)
    out.loss.backward()
    torch.testing.assert_close(loss, out.loss)
    torch.testing.assert_close(logp.grad, own.grad)
    assert own.grad.abs().max() > 0
