"""OpenRLHF's command line, as far as it expresses a variant; read from OpenRLHF 0.11.2."""
