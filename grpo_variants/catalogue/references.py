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

# Objective side

PRIME = Reference(
    "INTELLECT-2: A Reasoning Model Trained Through Globally Decentralized Reinforcement Learning", 2025, "2505.07291"
)
LIU_LUSPO = Reference(
    "Length-Unbiased Sequence Policy Optimization: Revealing and Controlling Response Length Variation in RLVR",
    2026,
    "2602.05261",
)
HE_DELTA_L = Reference("Delta L Normalization: Rethink Loss Aggregation in RLVR", 2025, "2509.07558")
WANG_FORKING = Reference(
    "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM Reasoning",
    2025,
    "2506.01939",
)
RING = Reference(
    "Every Step Evolves: Scaling Reinforcement Learning for Trillion-Scale Thinking Model", 2025, "2510.18855"
)
DEEPSEEK_V32 = Reference("DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models", 2025, "2512.02556")
YAO = Reference("Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025)
ZHENG_MINIRL = Reference("Stabilizing Reinforcement Learning with LLMs: Formulation and Practices", 2025, "2512.01374")
QI = Reference("Defeating the Training-Inference Mismatch via FP16", 2025, "2510.26788")
LIU_COLLAPSE = Reference(
    "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch", 2025
)
HAO = Reference("On-Policy RL with Optimal Reward Baseline", 2025, "2505.23585")
LIU_TRICKS = Reference("Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning", 2025, "2508.08221")
BAE = Reference(
    "EXAONE 4.0: Unified Large Language Models Integrating Non-reasoning and Reasoning Modes", 2025, "2507.11407"
)
TAJWAR = Reference("Maximum Likelihood Reinforcement Learning", 2026, "2602.02710")
CHU = Reference("GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning", 2025, "2504.02546")
TANG = Reference(
    "Optimizing Language Models for Inference Time Objectives using Reinforcement Learning", 2025, "2503.19595"
)
CHEN = Reference(
    "Pass@k Training for Adaptively Balancing Exploration and Exploitation of Large Reasoning Models",
    2025,
    "2508.10751",
)
KIM = Reference(
    "MC-GRPO: Median-Centered Group Relative Policy Optimization for Small-Rollout Reinforcement Learning",
    2026,
    "2601.22582",
)
WU = Reference("Quantile Advantage Estimation: Stabilizing RLVR for LLM Reasoning", 2025, "2509.22611")
ZHU = Reference("The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning", 2025, "2506.01347")
XIAO = Reference("BNPO: Beta Normalization Policy Optimization", 2025, "2506.02864")
SHRIVASTAVA = Reference(
    "Sample More to Think Less: Group Filtered Policy Optimization for Concise Reasoning", 2025, "2508.09726"
)
MINIMAX = Reference("MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", 2025, "2506.13585")
KHATRI = Reference("The Art of Scaling Reinforcement Learning Compute for LLMs", 2025, "2510.13786")
GAO_SAPO = Reference("Soft Adaptive Policy Optimization", 2025, "2511.20347")
ZHAO_GMPO = Reference("Geometric-Mean Policy Optimization", 2025, "2507.20673")
SHEN_VESPO = Reference(
    "VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training", 2026, "2602.10693"
)
LEROUX = Reference(
    "Tapered Off-Policy REINFORCE: Stable and Efficient Reinforcement Learning for LLMs", 2025, "2503.14286"
)
QI_DPPO = Reference("Rethinking the Trust Region in LLM Reinforcement Learning", 2026, "2602.04879")
XIE_SPO = Reference("Simple Policy Optimization", 2024, "2401.16025")
KIMI = Reference("Kimi k1.5: Scaling Reinforcement Learning with LLMs", 2025, "2501.12599")
LIU_GDPO = Reference(
    "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization",
    2026,
    "2601.05242",
)
TAN = Reference("GTPO and GRPO-S: Token and Sequence-Level Reward Shaping with Policy Entropy", 2025, "2508.04349")
LI_OTB = Reference("The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL", 2026, "2602.07078")
WANG_KRPO = Reference(
    "Kalman Filter Enhanced GRPO for Reinforcement Learning-Based Language Model Reasoning", 2025, "2505.07527"
)
XU = Reference("Single-stream Policy Optimization", 2025, "2509.13232")
YANG = Reference("DCPO: Dynamic Clipping Policy Optimization", 2025, "2509.02333")
WANG_ASPO = Reference("ASPO: Asymmetric Importance Sampling Policy Optimization", 2025, "2510.06062")
WANG_ARCHER = Reference(
    "Stabilizing Knowledge, Promoting Reasoning: Dual-Token Constraints for RLVR", 2025, "2507.15778"
)
SU_CEGPPO = Reference(
    "CE-GPPO: Coordinating Entropy via Gradient-Preserving Clipping Policy Optimization in Reinforcement Learning",
    2025,
    "2509.20712",
)
FIPO = Reference("FIPO: Eliciting Deep Reasoning with Future-KL Influenced Policy Optimization", 2026, "2603.19835")
CUI = Reference("The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", 2025, "2505.22617")
XI_BAPO = Reference(
    "BAPO: Stabilizing Off-Policy Reinforcement Learning for LLMs via Balanced Policy Optimization with Adaptive "
    "Clipping",
    2025,
    "2510.18927",
)
ZHENG_M2PO = Reference(
    "Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?", 2025, "2510.01161"
)
GUO_KPOP = Reference(
    "KPop: Taming Training-Inference Mismatch in Reinforcement Learning with Adaptive Masking Regions", 2026
)
LING = Reference(
    "Ling and Ring 2.6 Technical Report: Efficient and Instant Agentic Intelligence at Trillion-Parameter Scale",
    2026,
    "2606.15079",
)
GLM5 = Reference("GLM-5: from Vibe Coding to Agentic Engineering", 2026, "2602.15763")
XU_PMD = Reference(
    "Approximation of Log-Partition Function in Policy Mirror Descent Induces Implicit Regularization for LLM "
    "Post-Training",
    2026,
    "2602.05933",
)
XIONG = Reference("A Minimalist Approach to LLM Reasoning: from Rejection Sampling to Reinforce", 2025, "2504.11343")
HE_UNLIKELINESS = Reference("Rewarding the Unlikely: Lifting GRPO Beyond Distribution Sharpening", 2025, "2506.02355")
KIMI_K25 = Reference("Kimi K2.5: Visual Agentic Intelligence", 2026, "2602.02276")
LIN_CPPO = Reference(
    "CPPO: Accelerating the Training of Group Relative Policy Optimization-Based Reasoning Models", 2025, "2503.22342"
)
XU_PODS = Reference(
    "Not All Rollouts are Useful: Down-Sampling Rollouts in LLM Reinforcement Learning", 2025, "2504.13818"
)
