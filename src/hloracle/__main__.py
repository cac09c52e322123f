"""`python -m hloracle` is the command line."""

from hloracle.cli.main import main

if __name__ == "__main__":
    main()
