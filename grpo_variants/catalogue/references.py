"""The papers that define the catalogue's members."""

from grpo_variants.variant import Reference

WILLIAMS = Reference("Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning", 1992)
KOOL = Reference("Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019)
AHMADIAN = Reference(
    "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
    2024,
    "2402.14740",
)
SHAO = Reference(
    "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", 2024, "2402.03300"
)
LIU = Reference("Understanding R1-Zero-Like Training: A Critical Perspective", 2025, "2503.20783")
YU = Reference("DAPO: An Open-Source LLM Reinforcement Learning System at Scale", 2025, "2503.14476")
ZHENG = Reference("Group Sequence Policy Optimization", 2025, "2507.18071")
HU = Reference(
    "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization", 2025, "2501.03262"
)
LI = Reference(
    "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language Models",
    2023,
    "2310.10505",
)
