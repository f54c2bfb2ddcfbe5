"""docs/parity has what this suite compared with the host, and nothing else."""


def test_the_committed_table_is_what_the_tests_found(compared):
    compared.check()
