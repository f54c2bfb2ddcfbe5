"""`accelerate launch -m grpo_variants_trl ...`: the launcher under a distributed launcher."""

from grpo_variants_trl.launcher import main

main()
