"""Property tests draw the same examples in every run, and no example is timed: the machine may be busy."""

import hypothesis

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=40)
hypothesis.settings.load_profile("fixed")
