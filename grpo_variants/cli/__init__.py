"""The command line: `grpo-variants list | show | translate | doctor`, and a command per trainer with a launcher."""
