"""Speed and memory against the hosts, as ratios within one run: `python -m benchmarks --help`."""
