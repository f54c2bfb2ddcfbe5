"""ms-swift's command line, as far as it expresses a variant; read from ms-swift 4.6.0."""
