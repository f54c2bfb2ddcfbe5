"""The command line: `grpo-variants list | show | trl | translate | doctor`."""
