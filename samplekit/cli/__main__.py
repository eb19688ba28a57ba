"""`python -m samplekit.cli` is `samplekit`."""

from samplekit.cli.app import main

if __name__ == "__main__":
    main()
