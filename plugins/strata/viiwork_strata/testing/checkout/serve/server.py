"""`python -m serve.server` of this checkout is the double."""

from viiwork_strata.testing.double import main

if __name__ == "__main__":
    main()
