"""Speed and memory against the trainers, as ratios within one run: `python -m benchmarks --help`."""
